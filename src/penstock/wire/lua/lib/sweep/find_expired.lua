-- Find jobs whose ttl has ended, at most sweep_limit a call: expired (a list) and expired_set (number -> place in the
-- list), and expired_once for those delivered at most once. sweep_limit grows with the call: 100, and two for
-- each job that it adds or ends, so a client that repeats a call leaves no more behind than it removes. A call that
-- delivers uses 2000, to reach the jobs behind them.
--- NEEDS  ready held active scheduled once tally expiry meta uses now sweep_limit score_of release_dedup drop_bodies
---        bodies_left nothing keep_results forget notify_ended batches count_members dead
--- GIVES  expired expired_set expired_once more_expired expired_at_head remove_expired head_expired other_expired
---        trim_to
local expired, expired_set, expired_once, more_expired = {}, {}, {}, false -- more_expired: there may be more than in the list
if uses_any('ttls') then
  expired = redis.call('ZRANGE', expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, sweep_limit)
  for i = 1, #expired do
    expired_set[expired[i]] = i
  end
  more_expired = #expired == sweep_limit
end
if uses_any('once') then
  expired_once = redis.call('ZRANGE', once, '-inf', string.format('%.0f', score_of(now, 4095)), 'BYSCORE', 'LIMIT', 0, sweep_limit)
end
if #expired + #expired_once > 0 then -- check the types of all keys before the first write
  redis.call('ZCARD', active)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', once)
  redis.call('ZCARD', expiry)
  redis.call('HLEN', tally)
  redis.call('XLEN', ready)
  redis.call('HLEN', held)
end
release_dedup(expired, false)
release_dedup(expired_once, false)
--@include lib/sweep/expired_at_head
--@include lib/sweep/remove_expired
