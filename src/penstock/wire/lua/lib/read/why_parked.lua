-- why_parked(id) returns why a parked job waits: 'held' = for the end of a hold of its key; else the number of tickets of its key and, behind a
-- blank, the limit, which is absent if the queue has none: '4 4'.
--- KEYS   meta parked tickets
--- NEEDS  hold_end
--- GIVES  why_parked
local function why_parked(id)
  local hash = redis.call('ZSCORE', parked, id)
  hash = string.format('%.0f', hash)
  if hold_end(hash) then
    return 'held'
  end
  local settings = redis.call('HMGET', meta, 'ordered', 'per_key', 'share')
  local limit = settings[1] == '1' and '1' or settings[2] or settings[3]
  return redis.call('ZCOUNT', tickets, hash, hash) .. (limit and ' ' .. limit or '')
end
