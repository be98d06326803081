--- Take up to n jobs under a lease. A job stays on the server until it is acknowledged.
--- KEYS     ready held active scheduled urgent once dead tally expiry finished members batches meta wake space dedup windows parked tickets
--- ARGV     nonce n tag owner idle role asked
---          n      the most jobs, up to 1000; 0 = take none, hand the wake token on; below 0 = -n, and suspects are delivered
---                 provisionally
---          tag    0 to 4095, random: kept in the low 12 bits of the active score
---          owner  the client that takes the jobs: printable, no line break, at most 200 bytes
---          idle   1 = the caller comes from a wait for the wake token, else 0
---          role   '' or the consumer's exclusive role: fence and token of acquire, joined by a dash
---          asked  ms, at least 1: the lease in place of the queue's; '' or left out = the queue's
--- BOUNDS   n -1000 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full lease delivered
--- RETURNS  {1, nonce, next, epoch, lease, now, jobs: (number, counters, record)...}  next: -1 nothing is due, 0 more can be
---                                               reserved now, -2 closed and drained, else ms until the next event;
---                                               counters '' = first delivery
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}                 written by a newer protocol
---          {-15, nonce, kind, owner, left}      another consumer has the role, for so many ms unless it is renewed;
---                                               nothing taken
---          {-16, nonce, kind}                   the role of the call has ended; nothing taken
---          {-19, nonce, name, value}            malformed argument: owner or asked
--- FROM ready, scheduled, active  TO active, dead, none
--@include lib/checks/check_version
--@include lib/checks/check_owner
--@include lib/meta/now
--@include lib/checks/is_lease
if (asked or '') ~= '' and not is_lease(asked, 1) then
  return {-19, nonce, 'asked', string.sub(asked, 1, 200)}
end
lease = asked and tonumber(asked) or lease
local kind = 'consumer'
--@include lib/checks/check_role (gives: taken_by, left, lost)
if lost or taken_by then
  --@include lib/checks/pass_token
  if lost then
    return {-16, nonce, kind}
  end
  return {-15, nonce, kind, taken_by, left}
end
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
  return {1, nonce, -1, '', 30000, now}
end
local provisional = tonumber(n) < 0
n, idle = math.abs(n), idle == '1'
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
local sweep_limit = 2000 -- most expired jobs that this call removes
--@include lib/results/keep_results
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/remove_expired
--@include lib/deliver/rate (gives: allowance)
--@include lib/deliver/wake_drained
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
--@include lib/deliver/choose_jobs
--@include lib/deliver/prepare_delivery
--@include lib/deliver/write_delivery
--@include lib/deliver/next_event
--@include lib/deliver/append_jobs
local delivery = choose_jobs(math.min(n, allowance or n), expired, {}, false) -- no job ends in this call
prepare_delivery(delivery, lease, false, provisional)
local wrote, successor_due = write_delivery(delivery, expired, sweep_limit)
local took = #delivery.ids
local next_in = next_event(delivery, took, n, idle, wrote, successor_due)
if wants_room and took + #expired.ids > 0 then
  redis.call('RPUSH', space, '1')
end
local reply = {1, nonce, next_in, epoch or '', lease, now}
append_jobs(reply, delivery)
return reply
