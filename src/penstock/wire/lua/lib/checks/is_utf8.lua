-- is_utf8(text) tells whether a text is UTF-8; long forms and surrogates are not told.
--- GIVES  is_utf8
local function is_utf8(text)
  for _, form in ipairs({'[\194-\223]', '[\224-\239][\128-\191]', '[\240-\244][\128-\191][\128-\191]'}) do
    text = string.gsub(text, form .. '[\128-\191]', ' ')
  end
  return not string.find(text, '[\128-\255]')
end
