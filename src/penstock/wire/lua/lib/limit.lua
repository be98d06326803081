-- A limit of the queue's settings: as set, or the default; 0 = none.
--- GIVES  limit
local function limit(value, default)
  local most = tonumber(value) or default
  return most > 0 and most or math.huge
end
