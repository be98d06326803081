-- expired_ttl(record, delay) returns the ttl of the record if it ends before the delay, or with it; else nil.
--- GIVES  expired_ttl
local function expired_ttl(record, delay)
  local ttl = string.match(record, '^1[;l=%d]*;t=(%d+)')
  return ttl and ttl + 0 <= delay and ttl or nil
end
