-- join_batch(ids, batch) makes new jobs members of a batch. The deadline of an open one begins again, unless it has come.
--- KEYS   scheduled expiry members batches
--- NEEDS  now
--- GIVES  join_batch
local function join_batch(ids, batch)
  local pairs = {}
  for i = 1, #ids do
    pairs[i * 2 - 1], pairs[i * 2] = ids[i], batch
  end
  redis.call('HSET', members, unpack(pairs))
  local on, total, rest = string.match(redis.call('HGET', batches, batch) or '', '^(%a) (%d+)( .*)$')
  if on then
    redis.call('HSET', batches, batch, on .. ' ' .. total + #ids .. rest)
    local deadline = string.sub(rest, -1) == '1' and redis.call('ZSCORE', expiry, batch)
    local due = deadline and tonumber(deadline) > now and redis.call('ZSCORE', scheduled, batch)
    if due and tonumber(due) >= tonumber(deadline) then -- it was not promoted
      redis.call('ZADD', scheduled, '9007199254740991', batch)
      redis.call('ZADD', expiry, string.format('%.0f', now + 3600000), batch)
    end
  end
end
