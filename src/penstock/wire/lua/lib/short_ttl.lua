-- short_ttl(record, delay) returns the ttl of a job that would expire before it may run; nil = it would not.
--- GIVES  short_ttl
local function short_ttl(record, delay)
  local ttl = string.match(record, '^1[;l=%d]*;t=(%d+)')
  return ttl and ttl + 0 <= delay and ttl or nil
end
