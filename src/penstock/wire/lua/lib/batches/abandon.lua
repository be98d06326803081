-- abandon(ids) returns the expired jobs without the callbacks of open batches, whose deadline has come. Those become dead
-- letters; a callback that was promoted, and is not waiting any more, stays where it is.
--- KEYS   scheduled dead tally expiry batches meta
--- NEEDS  now uses notify_ended follow_deaths
--- GIVES  abandon
--@include lib/batches/abandoned_error
local function abandon(ids)
  if #ids == 0 or not uses_any('batches') then
    return ids
  end
  local entries, others = redis.call('HMGET', batches, unpack(ids)), {}
  for i = 1, #ids do
    local id, entry = ids[i], entries[i]
    if not entry then
      others[#others + 1] = id
    else
      redis.call('ZREM', expiry, id)
      redis.call('HSET', batches, id, string.sub(entry, 1, -2) .. '4')
      if redis.call('ZREM', scheduled, id) == 1 then
        redis.call('ZADD', dead, now, id)
        redis.call('HSET', tally, id, '0 0 0 0 ' .. abandoned_error)
        redis.call('HINCRBY', meta, 'died', 1)
        notify_ended({id})
        follow_deaths({id})
      end
    end
  end
  return others
end
