--- Finish jobs and take up to n more, in one call: a busy consumer's trip.
--- KEYS     ready held active scheduled once dead tally expiry meta wake space dedup windows
--- ARGV     nonce wanted common n tag owner role [number...]
---          as in ack and reserve; with n = 0 no role is asked for
--- META     v epoch seen off paused uses alarm full lease delivered acked=acked_before
--- RETURNS  {1, nonce, next, epoch, lease, now, acked, codes, jobs: (number, counters, record)...}  codes: '' when all of them
---                                        were acknowledged, else one for each as in ack, separated by blanks
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-6, nonce, version}          written by a newer protocol
---          {-9, nonce, epoch}            another epoch
---          {-15, nonce, kind, owner, left}      as in reserve; nothing finished
---          {-16, nonce, kind}                   as in reserve; nothing finished
---          {-19, nonce, name, value}            malformed argument: owner or number
--- FROM active, ready, scheduled  TO done, active, dead
--@include lib/version
--@include lib/owner
--@include lib/epoch
--@include lib/now
local kind = 'consumer'
local provisional = tonumber(n) < 0
n = math.abs(n)
if n == 0 then
  role = ''
end
--@include lib/role
if lost then
  return {-16, nonce, kind}
end
if taken_by and n > 0 then
  return {-15, nonce, kind, taken_by, left}
end
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
  return {1, nonce, -1, '', 30000, now, 0, string.rep('0 ', common == '*' and #numbers / 2 or #numbers)}
end
local idle = false
--@include lib/settled
--@include lib/acked
local settlings = acked
--@include lib/drop_bodies
--@include lib/release_dedup
release_dedup(finished, true)
local reach = 2000
--@include lib/expired_windows
--@include lib/lapsed
if acked > 0 and #lapsed + #spent > 0 then -- what is finished here has not expired
  local ending, left, kept = {}, {}, {}
  for i = 1, acked do
    ending[finished[i]] = true
  end
  for i = 1, #lapsed do
    if not ending[lapsed[i]] then
      left[#left + 1] = lapsed[i]
    end
  end
  for i = 1, #spent do
    if not ending[spent[i]] then
      kept[#kept + 1] = spent[i]
    end
  end
  lapsed, spent = left, kept
end
--@include lib/take
--@include lib/leases
if #expired_windows > 0 then
  redis.call('HDEL', held, '-')
  close_windows()
end
if acked > 0 then
  --@include lib/finish
  change('acked', acked_before + removed)
end
--@include lib/deliver
wrote = wrote or acked + #expired_windows > 0
--@include lib/rest
if hungry and #numbers + freed + #lapsed > 0 then
  redis.call('RPUSH', space, '1')
end
local outcome = acked == count and '' or table.concat(codes, ' ')
local reply = {1, nonce, drained and -2 or more and 0 or soonest and soonest - now or -1, epoch, lease, now, acked, outcome}
for i = 1, #numbers do
  local at = i * 3 + 6
  reply[at], reply[at + 1], reply[at + 2] = numbers[i], counts[i], joined(numbers[i], records[i])
end
return reply
