--- Take up to n jobs under a lease. Nothing leaves the server before it is acknowledged.
--- KEYS     ready held active scheduled once dead tally expiry meta wake space dedup windows
--- ARGV     nonce n tag owner idle role
---          n      how many, at most 1000; 0 = take nothing, hand the wake token on; below 0 = -n, and suspects are delivered
---                 provisionally
---          tag    0 to 4095, random: kept in the low 12 bits of the active score
---          owner  the client that takes them: printable, no line break, at most 200 bytes
---          idle   1 = the caller comes from a wait for the wake token, else 0
---          role   '' or the exclusive role that the consumer bears: fence and token of acquire, with a dash between
--- META     v epoch seen off paused uses alarm full lease delivered
--- RETURNS  {1, nonce, next, epoch, lease, now, jobs: (number, counters, record)...}  next: -1 nothing is due, 0 more can be
---                                               reserved now, -2 closed and drained, else ms until the next event;
---                                               counters '' = first delivery
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}                 written by a newer protocol
---          {-15, nonce, kind, owner, left}      another consumer has the role, and unless it is renewed for so many ms;
---                                               nothing taken
---          {-16, nonce, kind}                   the role that was borne has ended; nothing taken
---          {-19, nonce, name, value}            malformed argument: owner
--- FROM ready, scheduled, active  TO active, dead
--@include lib/version
--@include lib/owner
--@include lib/now
local kind = 'consumer'
--@include lib/role
if lost or taken_by then
  --@include lib/handed
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
local settlings, all, finished = 0, false, {}
--@include lib/drop_bodies
--@include lib/release_dedup
local reach = 2000
--@include lib/lapsed
--@include lib/take
--@include lib/leases
--@include lib/deliver
--@include lib/rest
if hungry and #numbers + #lapsed > 0 then
  redis.call('RPUSH', space, '1')
end
local reply = {1, nonce, drained and -2 or more and 0 or soonest and soonest - now or -1, epoch or '', lease, now}
for i = 1, #numbers do
  local at = i * 3 + 4
  reply[at], reply[at + 1], reply[at + 2] = numbers[i], counts[i], joined(numbers[i], records[i])
end
return reply
