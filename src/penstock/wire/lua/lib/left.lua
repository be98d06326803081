-- For how many ms an exclusive role is still held. One that ends further ahead than its lease was taken at a wrong time.
--- NEEDS  now
--- GIVES  left_of
local function left_of(ends, span)
  local left = (tonumber(ends) or now) - now
  return left > (tonumber(span) or 0) + 2592000000 and 0 or left
end
