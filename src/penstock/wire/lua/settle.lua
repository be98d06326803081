--- Acknowledge jobs and take up to n more, in one call.
--- KEYS     ready held active scheduled urgent once dead tally expiry finished members batches meta wake space dedup windows parked tickets
--- ARGV     nonce wanted common n tag owner role [number...]
---          as in ack and reserve; n = 0 needs no role
--- BOUNDS   n -1000 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full lease delivered acked=acked_before
--- RETURNS  {1, nonce, next, epoch, lease, now, acked, codes, jobs: (number, counters, record)...}  codes: '' when all of them
---                                        were acknowledged, else one for each as in ack, separated by blanks
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}          written by a newer protocol
---          {-9, nonce, epoch}            another epoch
---          {-15, nonce, kind, owner, left}      as in reserve; nothing finished
---          {-16, nonce, kind}                   as in reserve; nothing finished
---          {-19, nonce, name, value}            malformed argument: owner, number, or a time of keeping
--- FROM active, ready, scheduled  TO done, active, dead
--@include lib/checks/check_version
--@include lib/checks/check_owner
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: change)
--@include lib/results/check_results (gives: results_of)
local kind = 'consumer'
local provisional = tonumber(n) < 0
n = math.abs(n)
if n == 0 then
  role = ''
end
--@include lib/checks/check_role (gives: taken_by, left, lost)
if lost then
  return {-16, nonce, kind}
end
if taken_by and n > 0 then
  return {-15, nonce, kind, taken_by, left}
end
if not epoch then
  return {1, nonce, -1, '', 30000, now, 0, string.rep('0 ', common == '*' and #numbers / 2 or #numbers)}
end
--@include lib/results/keep_results
--@include lib/checks/check_receipts (gives: count, ids, codes, all_valid)
--@include lib/finish/find_done (gives: done, freed, acked)
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
release_dedup(done, true)
local sweep_limit = 2000 -- most expired jobs that this call removes
--@include lib/dedup/expired_windows (gives: close_windows)
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
if acked > 0 and #expired.ids + #expired.once > 0 then -- the finished jobs have not expired
  local ending, left, kept = {}, {}, {}
  for i = 1, acked do
    ending[done[i]] = true
  end
  for i = 1, #expired.ids do
    if not ending[expired.ids[i]] then
      left[#left + 1] = expired.ids[i]
    end
  end
  for i = 1, #expired.once do
    if not ending[expired.once[i]] then
      kept[#kept + 1] = expired.once[i]
    end
  end
  expired.ids, expired.once = left, kept
end
--@include lib/sweep/remove_expired
--@include lib/deliver/rate (gives: allowance)
--@include lib/deliver/wake_drained
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
--@include lib/deliver/choose_jobs
--@include lib/deliver/prepare_delivery
local delivery = choose_jobs(math.min(n, allowance or n), expired, done, all_valid)
prepare_delivery(delivery, lease, false, provisional)
if acked > 0 then
  keep_results(done, 'done', results_of(ids, codes))
end
if #expired_windows > 0 then
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
local next_in = next_event(delivery, took, n, false, wrote or acked + #expired_windows > 0, successor_due)
if wants_room and took + freed + #expired.ids > 0 then
  redis.call('RPUSH', space, '1')
end
local outcome = acked == count and '' or table.concat(codes, ' ')
local reply = {1, nonce, next_in, epoch, lease, now, acked, outcome}
append_jobs(reply, delivery)
return reply
