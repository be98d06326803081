-- Remove the finished jobs from all structures; `checked` is the result of check_receipts. HDEL comes first: it passes on a full server.
-- `removed` counts a job that was named twice once.
--- KEYS   ready held active scheduled once expiry
--- NEEDS  checked done drop_bodies uses freed forget notify_ended count_members
--- GIVES  removed
local removed, common_score = 0, checked.common_score
if checked.all_valid then
  --@include lib/finish/remove_deliveries
  drop_bodies(done)
  if uses_any('ttls') then
    redis.call('ZREM', expiry, unpack(done))
  end
  if uses_any('marks') then
    forget(done)
  end
elseif #done > 0 then
  removed = redis.call('HDEL', held, unpack(done))
  drop_bodies(done)
  redis.call('ZREM', active, unpack(done))
  redis.call('ZREM', once, unpack(done))
  forget(done)
  redis.call('ZREM', expiry, unpack(done))
  if freed > 0 then
    redis.call('ZREM', scheduled, unpack(done))
    removed = removed + redis.call('XDEL', ready, unpack(done))
  end
end
notify_ended(done)
count_members(done, 'done')
