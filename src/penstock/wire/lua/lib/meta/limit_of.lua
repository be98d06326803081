-- limit_of(value, default) returns a setting of the queue, or the default; 0 = no limit.
--- GIVES  limit_of
local function limit_of(value, default)
  local most = tonumber(value) or default
  return most > 0 and most or math.huge
end
