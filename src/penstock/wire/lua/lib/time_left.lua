-- time_left(ends, span) returns for how many ms an exclusive role is still held. An end further ahead than the lease
-- was written by a wrong clock.
--- NEEDS  now
--- GIVES  time_left
local function time_left(ends, span)
  local left = (tonumber(ends) or now) - now
  return left > (tonumber(span) or 0) + 2592000000 and 0 or left
end
