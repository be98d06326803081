--- Acknowledge jobs: they are done and removed.
--- KEYS     @queue
--- ARGV     nonce wanted common window [number...]
---          wanted  epoch of the ids; '' = not checked
---          common  the receipt of all the jobs; '' = by id alone, waiting jobs are finished too; '*' = each number is followed
---                  by its own receipt. '@' and the ms in which the leases end may follow the receipt: a hint that saves
---                  lookups if the numbers are exactly the jobs of one reserve, in order. A line feed and the time for which
---                  results are kept may follow; then the results follow the numbers (protocol/results.md)
---          window  ms for which the dedup ids of the jobs stay taken from now on; 0 = not at all; '' = as their records say
--- BOUNDS   window? 0 3162240000000
--- META     v epoch uses seen off acked=acked_before
--- MORE     full paused alarm
--- RETURNS  {1, nonce, acked}             all of them
---          {1, nonce, acked, code...}    a code for each: 1 done, 0 gone, -1 stale receipt, -2 dead or another state,
---                                        2 ended before with this same receipt
---          {5, nonce, acked}             all of them, by the fast lane
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number, or a time of keeping
---          {-20, nonce}                  more than the fast lane can do: repeat the call with all keys; nothing done
--- FROM active, ready, scheduled  TO done
--@include lib/checks/check_version
--@include lib/meta/server_time (gives: now_ms, since)
--@include lib/meta/scores
repeat -- the fast lane: first deliveries, whose end concerns no other structure; a `break` leaves it, see reserve
  if uses_any('large_bodies closed max_active dedup batches results tickets ttls awaited') or epoch ~= wanted or off > 0 or since < 0 or window ~= ''
    or string.sub(common, 1, 2) ~= '1-' then
    break
  end
  local ids, count = numbers, #numbers
  --@include lib/checks/check_first_deliveries (gives: all_valid)
  if not all_valid then
    break
  end
  --@include lib/finish/finish_first_deliveries (gives: removed)
  if since < 1000 then
    redis.call('HSET', meta, 'acked', acked_before + removed)
  else
    redis.call('HSET', meta, 'acked', acked_before + removed, 'seen', now_ms)
  end
  return {5, nonce, count}
until true
--@full
--@include lib/checks/check_epoch
--@include lib/meta/changes (gives: change)
--@include lib/meta/clock (gives: now)
--@include lib/results/keep_results
--@include lib/results/check_results (gives: results_of)
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local count, ids, codes = checked.count, checked.ids, checked.codes
--@include lib/finish/find_done
local done, freed = find_done(checked)
local acked = #done
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup (gives: write_ends)
release_dedup(done, true, tonumber(window))
local wants_room = freed > 0 and full > now and redis.call('LLEN', space) == 0
local sweep_limit = 100 + 2 * count
--@include lib/dedup/expired_windows
local _, close_windows = expired_windows(sweep_limit)
local wake_empty = uses_any('dedup batches tickets') and redis.call('LLEN', wake) == 0 -- read before the first write
if acked > 0 then
  keep_results(done, 'done', results_of(ids, codes))
  --@include lib/finish/remove_done (gives: removed)
  close_windows()
  local successor_due, token = write_ends(), false
  if successor_due and paused ~= 'out' and paused ~= 'all' then
    --@include lib/deliver/announce
    token = successor_due <= now or announce(successor_due, false)
  end
  change('acked', acked_before + removed)
  redis.call('HSET', meta, unpack(changes))
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  wake_after_ends()
end
if wants_room then
  redis.call('RPUSH', space, '1')
end
if acked == 0 then -- write something, so that a WAIT after this call proves replication
  redis.call('HDEL', held, '-')
  redis.call('HSET', held, '-', '')
  redis.call('HDEL', held, '-')
end
if acked == count then
  return {1, nonce, acked}
end
return {1, nonce, acked, unpack(codes)}
