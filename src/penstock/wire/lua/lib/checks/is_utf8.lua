-- is_utf8(text) tells whether a text is UTF-8; long forms and surrogates are not told.
--- GIVES  is_utf8
local function is_utf8(text)
  text = string.gsub(text, '[\194-\223][\128-\191]', ' ')
  text = string.gsub(text, '[\224-\239][\128-\191][\128-\191]', ' ')
  text = string.gsub(text, '[\240-\244][\128-\191][\128-\191][\128-\191]', ' ')
  return not string.find(text, '[\128-\255]')
end
