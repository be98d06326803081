--- Take up to n jobs under a lease. A job stays on the server until it is acknowledged.
--- KEYS     @queue
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
---          {5, nonce, next, epoch, lease, now, jobs: (number, record)...}  the same, by the fast lane: all are first deliveries
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}                 written by a newer protocol
---          {-15, nonce, kind, owner, left}      another consumer has the role, for so many ms unless it is renewed;
---                                               nothing taken
---          {-16, nonce, kind}                   the role of the call has ended; nothing taken
---          {-19, nonce, name, value}            malformed argument: owner or asked
---          {-20, nonce}                         more than the fast lane can do: repeat the call with all keys; nothing taken
--- FROM ready, scheduled, active  TO active, dead, none
--@include lib/checks/check_version
--@include lib/meta/changes (gives: change)
--@include lib/meta/server_time (gives: now_ms, since)
--@include lib/meta/scores
repeat -- the fast lane: jobs at the head of ready, without options that concern their delivery
  -- A `break` leaves it, with nothing written. Then the call goes on behind --@full, or is refused with -20 if it came with the
  -- first keys only.
  --@include lib/deliver/fits_lane (gives: fits)
  if not fits then
    break
  end
  local now, n, lease, idle = now_ms + 0, math.abs(n), lease, idle == '1'
  if (asked or '') ~= '' then
    --@include lib/checks/is_lease
    if not is_lease(asked, 1) then
      break
    end
    lease = tonumber(asked)
  end
  --@include lib/deliver/choose_ready (gives: reply, took)
  if not fits then
    break
  end
  local wake_empty, wrote = redis.call('LLEN', wake) == 0, took > 0
  if took > 0 then
    redis.call('HDEL', held, '-')
    --@include lib/deliver/deliver_ready
    change('delivered', delivered + took)
  end
  if since >= 1000 then
    change('seen', now_ms)
  end
  --@include lib/deliver/next_ready (gives: next_in)
  reply[3] = next_in
  return reply
until true
--@full
--@include lib/checks/check_owner
--@include lib/meta/clock (gives: now)
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
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
-- A delivery: 1 find expired jobs; 2 choose jobs: ended leases, then due jobs and the head of ready, as the limits of keys and the rate
-- allow; 3 prepare what is written for them, and check all types; 4 write; 5 find the next event, and wake others if it is theirs.
-- What ends on the way (an expired job, one that dies of its crash) is told to its dedup id, batch and result. So these includes need
-- each other, in this order: notify_ended makes `keyed`, count_members `fired`, release_dedup write_ends(), which writes all of it.
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/results/keep_results
--@include lib/sweep/find_expired
--@include lib/sweep/remove_expired
--@include lib/deliver/rate (gives: allowance)
--@include lib/deliver/wake_after_ends
--@include lib/deliver/choose_jobs
--@include lib/deliver/prepare_delivery
--@include lib/deliver/write_delivery
--@include lib/deliver/next_event
--@include lib/deliver/append_jobs
local sweep_limit = 2000 -- most expired jobs that this call removes
local expired = find_expired(sweep_limit)
local delivery = choose_jobs(math.min(n, allowance or n), expired, {}, false) -- no job is acked in this call
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
