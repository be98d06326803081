--- Acknowledge jobs and take up to n more, in one call.
--- KEYS     @queue
--- ARGV     nonce wanted common n tag owner role [number...]
---          as in ack and reserve; n = 0 needs no role
--- BOUNDS   n -1000 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full lease delivered acked=acked_before
--- RETURNS  {1, nonce, next, epoch, lease, now, acked, codes, jobs: (number, counters, record)...}  codes: '' when all of them
---                                        were acknowledged, else one for each as in ack, separated by blanks
---          {5, nonce, next, epoch, lease, now, jobs: (number, record)...}  all of them, by the fast lane; the jobs as in reserve
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}          written by a newer protocol
---          {-9, nonce, epoch}            another epoch
---          {-15, nonce, kind, owner, left}      as in reserve; nothing finished
---          {-16, nonce, kind}                   as in reserve; nothing finished
---          {-19, nonce, name, value}            malformed argument: owner, number, or a time of keeping
---          {-20, nonce}                         more than the fast lane can do: repeat the call with all keys; nothing done
--- FROM active, ready, scheduled  TO done, active, dead
--@include lib/checks/check_version
--@include lib/meta/changes (gives: change)
--@include lib/meta/server_time (gives: now_ms, since)
--@include lib/meta/scores (gives: end_of)
repeat -- the fast lane: those of ack and reserve; a `break` leaves it with nothing written, see reserve
  --@include lib/deliver/fits_lane (gives: fits)
  if not fits or uses_any('dedup batches results awaited') or epoch ~= wanted or string.sub(common, 1, 2) ~= '1-' then
    break
  end
  local now, n, ids, count = now_ms + 0, math.abs(n), numbers, #numbers
  --@include lib/checks/check_first_deliveries (gives: all_valid)
  if not all_valid then
    break
  end
  --@include lib/deliver/choose_ready (gives: first_end, reply, took)
  if not fits then
    break
  end
  local wake_empty, wrote, idle = redis.call('LLEN', wake) == 0, true, false
  --@include lib/finish/finish_first_deliveries (gives: removed)
  change('acked', acked_before + removed)
  if took > 0 then
    --@include lib/deliver/deliver_ready
    change('delivered', delivered + took)
  end
  if since >= 1000 then
    change('seen', now_ms)
  end
  if first_end and first_end - now <= 4000 then -- it may have ended in this call
    first_end = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES')[2]
    first_end = first_end and end_of(first_end)
  end
  --@include lib/deliver/next_ready (gives: next_in)
  reply[3] = next_in
  return reply
until true
--@full
--@include lib/checks/check_owner
--@include lib/checks/check_epoch
--@include lib/meta/clock (gives: now)
--@include lib/results/check_results (gives: results_of)
local kind = 'consumer'
local provisional = tonumber(n) < 0
n = math.abs(n)
if n == 0 then
  role = ''
end
--@include lib/checks/check_role (gives: taken_by, left, lost)
if lost then -- a settle comes from no wait: there is no token to hand on, as in reserve
  return {-16, nonce, kind}
end
if taken_by and n > 0 then
  return {-15, nonce, kind, taken_by, left}
end
if not epoch then
  return {1, nonce, -1, '', 30000, now, 0, string.rep('0 ', common == '*' and #numbers / 2 or #numbers)}
end
-- First everything is decided: which jobs are done, as in ack; which windows have ended, and which jobs have expired; and the next delivery,
-- by the steps of reserve. Then all of it is written. `done` jobs count as ended from the start: none is delivered, or removed as expired.
--@include lib/results/keep_results
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local count, ids, codes = checked.count, checked.ids, checked.codes
--@include lib/finish/find_done
local done, freed = find_done(checked)
local acked = #done
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
release_dedup(done, true)
local sweep_limit = 2000 -- most expired jobs that this call removes
--@include lib/dedup/expired_windows
local ended_windows, close_windows = expired_windows(sweep_limit)
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/spare_done
spare_done(expired, done)
--@include lib/sweep/remove_expired
--@include lib/deliver/rate (gives: allowance)
--@include lib/deliver/wake_after_ends
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
--@include lib/deliver/choose_jobs
--@include lib/deliver/prepare_delivery
local delivery = choose_jobs(math.min(n, allowance or n), expired, done, checked.all_valid)
prepare_delivery(delivery, lease, false, provisional)
if acked > 0 then
  keep_results(done, 'done', results_of(ids, codes))
end
if #ended_windows > 0 then
  redis.call('HDEL', held, '-')
  close_windows()
end
if acked > 0 then
  --@include lib/finish/remove_done (gives: removed)
  change('acked', acked_before + removed)
end
--@include lib/deliver/write_delivery
--@include lib/deliver/next_event
--@include lib/deliver/append_jobs
local wrote, successor_due = write_delivery(delivery, expired, sweep_limit)
local took = #delivery.ids
local next_in = next_event(delivery, took, n, false, wrote or acked + #ended_windows > 0, successor_due)
if wants_room and took + freed + #expired.ids > 0 then
  redis.call('RPUSH', space, '1')
end
local outcome = acked == count and '' or table.concat(codes, ' ')
local reply = {1, nonce, next_in, epoch, lease, now, acked, outcome}
append_jobs(reply, delivery)
return reply
