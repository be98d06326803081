-- is_time(text) returns if text is ms since 1970, in digits that a score keeps exactly.
--- GIVES  is_time
local function is_time(text)
  return #text <= 15 and string.find(text, '^%d+$')
end
