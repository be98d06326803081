-- join_batch(ids, batch, place) makes new jobs members of a batch. The deadline of an open one begins again, unless it has come. If the
-- batch keeps values, each gets the next place; place: the first one gets this, that of the job which it follows.
--- KEYS   scheduled tally expiry members batches
--- NEEDS  now uses
--- GIVES  join_batch
local function join_batch(ids, batch, place)
  local pairs, suffix = {}, {}
  local count, bytes = string.match(uses_any('notes') and redis.call('HGET', tally, 'nb' .. batch) or '', '^(%d+) (%d+)$')
  if count then
    local fields, known = {}, 10000 -- places whose values are kept
    if place then
      suffix[1], count = ':' .. place, count - 1
      bytes = bytes - redis.call('HSTRLEN', tally, 'nb' .. batch .. suffix[1])
    end
    for i = 1, #ids do
      suffix[i] = suffix[i] or string.format(':%.0f', count + i)
      if (i == 1 and place or count + i) + 0 <= known then
        fields[#fields + 1], fields[#fields + 2], bytes = 'nb' .. batch .. suffix[i], ids[i], bytes + #ids[i]
      end
    end
    redis.call('HSET', tally, 'nb' .. batch, string.format('%.0f %.0f', count + #ids, bytes), unpack(fields))
  end
  for i = 1, #ids do
    pairs[i * 2 - 1], pairs[i * 2] = ids[i], batch .. (suffix[i] or '')
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
