-- remove_waiting(ids, counter) removes jobs that are in ready or scheduled; `counter` of meta counts them. HDEL comes
-- first: it passes on a full server.
--- KEYS   ready held scheduled expiry meta space
--- NEEDS  drop_bodies changes wake_after_ends wants_room write_ends_and_wake forget notify_ended count_members
--- GIVES  remove_waiting
--@include lib/finish/complete_removal
local function remove_waiting(ids, counter)
  redis.call('HDEL', held, unpack(ids))
  drop_bodies(ids)
  redis.call('XDEL', ready, unpack(ids))
  redis.call('ZREM', scheduled, unpack(ids))
  redis.call('ZREM', expiry, unpack(ids))
  forget(ids)
  redis.call('HINCRBY', meta, counter, #ids)
  notify_ended(ids)
  count_members(ids, 'failed')
  complete_removal()
end
