-- Remove the lapsed, whatever state they are in. Nobody is told; the counter says how many.
if #lapsed > 0 then
  redis.call('HDEL', held, unpack(lapsed))
  redis.call('XDEL', ready, unpack(lapsed))
  redis.call('ZREM', active, unpack(lapsed))
  redis.call('ZREM', scheduled, unpack(lapsed))
  redis.call('HDEL', tally, unpack(lapsed))
  redis.call('ZREM', expiry, unpack(lapsed))
  redis.call('HINCRBY', meta, 'expired', #lapsed)
end
if #spent > 0 then
  redis.call('HDEL', held, unpack(spent))
  redis.call('ZREM', once, unpack(spent))
  redis.call('HDEL', tally, unpack(spent))
  redis.call('HINCRBY', meta, 'expired', #spent)
end
