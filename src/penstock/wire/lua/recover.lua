--- Take deliveries over from their holders: each counts as a crash, and is the caller's under a lease of its own.
--- KEYS     ready held active once dead tally expiry meta wake scheduled dedup windows
--- ARGV     nonce wanted common tag owner role [number...]
---          common  '*': after each number comes the receipt of the delivery that is meant, as pending answers it
---          wanted, tag, owner, role   as in ack and reserve
--- META     v epoch uses seen off paused alarm lease delivered max_attempts max_crashes
--- RETURNS  {1, nonce, seen, epoch, lease, now, jobs: (number, counters, record)...}  seen: of how many of the named this call has
---                                        decided, in order; the others did not fit into 1 MiB, name them again. A delivery
---                                        that has ended meanwhile is left out, and so is a job that died of this crash
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-15, nonce, kind, owner, left}  another consumer has the role; nothing taken over
---          {-16, nonce, kind}            the role that was borne has ended; nothing taken over
---          {-19, nonce, name, value}     malformed argument: owner or number
--- FROM active  TO active, dead
--@include lib/version
--@include lib/owner
--@include lib/epoch
--@include lib/now
--@include lib/limit
--@include lib/terms
local kind, provisional = 'consumer', false
--@include lib/role
if lost then
  return {-16, nonce, kind}
end
if taken_by then
  return {-15, nonce, kind, taken_by, left}
end
max_attempts, max_crashes = limit(max_attempts, 20), limit(max_crashes, 3)
--@include lib/crash
--@include lib/joined
local decided = #numbers / 2
local reply = {1, nonce, decided, epoch or '', lease, now}
if paused or decided == 0 then -- paused: nothing is delivered again
  --@include lib/renewed
  return reply
end
--@include lib/settled
local tallied = counts
local numbers, records, counts = {}, {}, {}
local due, cut, dropped, fallen, crashes, lapsed, lapse, spent, unlisted = {}, nil, {}, {}, 0, {}, {}, {}, false
local front, stood, elsewhere = '-', 0, {} -- no expired jobs
local bytes, soonest, named = 0, false, {}
for i = 1, decided do
  local id = ids[i]
  if codes[i] == 1 and where[i] == 'active' and not named[id] then
    if bytes >= 1048576 then
      reply[3] = i - 1
      break
    end
    named[id] = true
    local value = redis.call('HGET', held, id)
    local ends = redis.call('ZSCORE', expiry, id)
    local record = value and (string.match(value, '^@[^\n]*\n(.*)$') or value)
    local size = record and size_of(id, record)
    bytes = bytes + (size or 0)
    if size and not (ends and tonumber(ends) <= now) then
      local count, dies, counted = crash(tallied[i], record, value)
      crashes = crashes + counted
      if dies then
        fallen[#fallen + 1] = id
        fallen[#fallen + 1] = count
      else
        numbers[#numbers + 1], records[#records + 1], counts[#counts + 1] = id, record, count
      end
    end
  end
end
redis.call('ZCARD', scheduled)
redis.call('ZCARD', once)
redis.call('ZCARD', expiry)
redis.call('XLEN', ready)
local asleep = redis.call('LLEN', wake) == 0
--@include lib/check_closed
--@include lib/drop_bodies
--@include lib/release_dedup
--@include lib/leases
local reach = 100 + 2 * decided
--@include lib/deliver
--@include lib/announce
local token = soonest and announce(soonest, false)
if successor_due then
  token = successor_due <= now or announce(successor_due, false) or token
end
if role ~= '' and not wrote then
  redis.call('HDEL', held, '-')
end
if #changes > 0 and (wrote or role ~= '') then
  redis.call('HSET', meta, unpack(changes))
end
if wrote then
  if token and asleep then
    redis.call('RPUSH', wake, '1')
  end
  wake_drained()
end
for i = 1, #numbers do
  local at = i * 3 + 4
  reply[at], reply[at + 1], reply[at + 2] = numbers[i], counts[i], joined(numbers[i], records[i])
end
return reply
