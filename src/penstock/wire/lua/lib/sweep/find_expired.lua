-- find_expired(limit) returns the jobs whose ttl has ended, at most so many: {ids = numbers, left_out = number -> place in ids, once =
-- those delivered at most once, has_more = there may be others, and what expired_at_head returns of ids: trim_to, head_count, others}.
-- A delivery leaves out all jobs of left_out: choose_jobs adds some that have not expired. It also calls release_dedup for the
-- expired ones.
-- The limit grows with the call: 100, and two for each job that it adds or ends, so a client that repeats a call leaves no more
-- behind than it removes. A call that delivers has 2000, to reach the jobs behind them.
--- KEYS   ready held active scheduled once dead tally expiry
--- NEEDS  now uses score_of release_dedup
--- GIVES  find_expired
local function find_expired(limit)
  local expired = {ids = {}, left_out = {}, once = {}, has_more = false, trim_to = '-', head_count = 0, others = {}}
  local ids, places = expired.ids, expired.left_out
  if uses_any('ttls') then
    ids = redis.call('ZRANGE', expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
    for i = 1, #ids do
      places[ids[i]] = i
    end
    expired.ids, expired.has_more = ids, #ids == limit
  end
  if uses_any('once') then
    expired.once = redis.call('ZRANGE', once, '-inf', string.format('%.0f', score_of(now, 4095)), 'BYSCORE', 'LIMIT', 0, limit)
  end
  if #ids + #expired.once > 0 then -- check the types of all keys before the first write
    redis.call('ZCARD', active)
    redis.call('ZCARD', scheduled)
    redis.call('ZCARD', once)
    redis.call('ZCARD', expiry)
    redis.call('HLEN', tally)
    redis.call('XLEN', ready)
    redis.call('HLEN', held)
    if uses_any('batches') then
      redis.call('ZCARD', dead)
    end
    release_dedup(ids, false)
    release_dedup(expired.once, false)
    --@include lib/sweep/expired_at_head
    expired.trim_to, expired.head_count, expired.others = expired_at_head(ids, places)
  end
  return expired
end
