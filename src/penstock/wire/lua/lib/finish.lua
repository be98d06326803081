-- Remove the finished from every place they may be in; HDEL first, it passes on a full server. removed counts a job that
-- was named twice once.
--- NEEDS  ready held active scheduled once tally expiry all finished drop_bodies whole uses freed
--- GIVES  removed
local removed = 0
if all then
  removed = redis.call('HDEL', held, unpack(finished))
  drop_bodies(finished)
  if whole then
    redis.call('ZREMRANGEBYSCORE', active, whole, whole)
  else
    redis.call('ZREM', active, unpack(finished))
  end
  if string.find(uses, 't', 1, true) then
    redis.call('ZREM', expiry, unpack(finished))
  end
elseif #finished > 0 then
  removed = redis.call('HDEL', held, unpack(finished))
  drop_bodies(finished)
  redis.call('ZREM', active, unpack(finished))
  redis.call('ZREM', once, unpack(finished))
  redis.call('HDEL', tally, unpack(finished))
  redis.call('ZREM', expiry, unpack(finished))
  if freed > 0 then
    redis.call('ZREM', scheduled, unpack(finished))
    removed = removed + redis.call('XDEL', ready, unpack(finished))
  end
end
