-- policy(value, at) returns the policy of the record that begins at this place: its attempts (0 = no limit), and base
-- and cap of the backoff in ms. nil = the queue's, also for a part that is no number within its bounds
-- (protocol/core.md, Record).
--- GIVES  policy
local function part(text, least, most)
  local value = text and #text < 14 and string.match(text, '^%d+$') and tonumber(text)
  return value and value >= least and value <= most and value or nil
end
local function policy(value, at)
  local a, b, c = string.match(value, '^[1+][;lt=%d]*;p=([^,;\n]*),?([^,;\n]*),?([^,;\n]*)', at)
  return part(a, 0, 1000000000), part(b, 1, 3162240000000), part(c, 1, 3162240000000)
end
