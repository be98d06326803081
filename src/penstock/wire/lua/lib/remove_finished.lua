-- Remove the finished jobs from all structures. HDEL comes first: it passes on a full server. `removed` counts a job
-- that was named twice once.
--- NEEDS  ready held active scheduled once expiry all_valid finished drop_bodies common_score uses freed forget
--- GIVES  removed
local removed = 0
if all_valid then
  --@include lib/end_deliveries
  drop_bodies(finished)
  if string.find(uses, 't', 1, true) then
    redis.call('ZREM', expiry, unpack(finished))
  end
  if string.find(uses, 'm', 1, true) then
    forget(finished)
  end
elseif #finished > 0 then
  removed = redis.call('HDEL', held, unpack(finished))
  drop_bodies(finished)
  redis.call('ZREM', active, unpack(finished))
  redis.call('ZREM', once, unpack(finished))
  forget(finished)
  redis.call('ZREM', expiry, unpack(finished))
  if freed > 0 then
    redis.call('ZREM', scheduled, unpack(finished))
    removed = removed + redis.call('XDEL', ready, unpack(finished))
  end
end
