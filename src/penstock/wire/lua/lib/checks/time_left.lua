-- time_left(ends, span) returns the ms for which an exclusive role is still held. An end later than the lease allows was
-- written by a wrong clock, and counts as ended.
--- NEEDS  now
--- GIVES  time_left
local function time_left(ends, span)
  local left = (tonumber(ends) or now) - now
  return left > (tonumber(span) or 0) + 2592000000 and 0 or left
end
