-- end_cancelled(ids) removes jobs in active that a call of cancel has marked, keeps their results, and counts them.
--- KEYS   held active expiry meta
--- NEEDS  drop_bodies forget keep_results notify_ended count_members
--- GIVES  end_cancelled
local function end_cancelled(ids)
  keep_results(ids, 'cancelled')
  redis.call('HDEL', held, unpack(ids))
  drop_bodies(ids)
  redis.call('ZREM', active, unpack(ids))
  redis.call('ZREM', expiry, unpack(ids))
  forget(ids)
  redis.call('HINCRBY', meta, 'cancelled', #ids)
  notify_ended(ids)
  count_members(ids, 'failed')
end
