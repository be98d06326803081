--- Take deliveries over from their holders. Each counts as a crash, and gets a new lease.
--- KEYS     @queue
--- ARGV     nonce wanted common tag owner role [number...]
---          common  '*': each number is followed by the receipt of its delivery, as in the reply of pending
---          wanted, tag, owner, role   as in ack and reserve
--- BOUNDS   tag 0 4095
--- META     v epoch uses seen off paused alarm lease delivered max_attempts max_crashes
--- RETURNS  {1, nonce, seen, epoch, lease, now, jobs: (number, counters, record)...}  seen: how many of the named deliveries,
---                                        in order, were handled; the others exceeded 1 MiB: name them again. A delivery
---                                        that has ended meanwhile, one of a held key, and a job that died of this crash, are left out
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-15, nonce, kind, owner, left}  another consumer has the role; nothing taken over
---          {-16, nonce, kind}            the role of the call has ended; nothing taken over
---          {-19, nonce, name, value}     malformed argument: owner or number
--- FROM active  TO active, dead, none
--@include lib/checks/check_version
--@include lib/checks/check_owner
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/meta/limit_of
local kind = 'consumer'
--@include lib/checks/check_role (gives: taken_by, left, lost)
if lost then
  return {-16, nonce, kind}
end
if taken_by then
  return {-15, nonce, kind, taken_by, left}
end
max_attempts, max_crashes = limit_of(max_attempts, 20), limit_of(max_crashes, 3)
--@include lib/deliver/count_crash
--@include lib/return/describe_failure
--@include lib/read/join_body (gives: record_size)
local decided = #numbers / 2
local reply = {1, nonce, decided, epoch or '', lease, now}
--@include lib/deliver/hold (gives: held_until)
if paused or held_until or decided == 0 then -- paused, held: nothing is delivered again
  --@include lib/checks/renew_role
  return reply
end
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local ids, codes, where, counts = checked.ids, checked.codes, checked.where, checked.counts
--@include lib/deliver/new_delivery
local delivery = new_delivery()
local taken, dying, cancelled, marks, crashes = delivery.ids, {}, {}, {}, 0
local expired = {ids = {}, once = {}, others = {}} -- none is looked for
local bytes, named = 0, {}
--@include lib/keyed/hold_end (gives: has_holds)
local function is_held_key(record)
  local hex = string.match(string.match(record, '^[^\n]*'), ';q=(' .. string.rep('%x', 13) .. ')')
  return hex and hold_end(string.format('%.0f', tonumber(hex, 16)))
end
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
    local size = record and record_size(id, record)
    bytes = bytes + (size or 0)
    if size and not (ends and tonumber(ends) <= now) and not (has_holds and is_held_key(record)) then
      if uses_any('marks') and redis.call('HEXISTS', tally, 'c' .. id) == 1 then
        cancelled[#cancelled + 1] = id
      else
        local count, dies, crashed = count_crash(counts[i], record, value, max_attempts, max_crashes)
        crashes = crashes + crashed
        if crashed > 0 then
          marks[#marks + 1] = 'e' .. id
          marks[#marks + 1] = describe_failure(id, value, 'taken over', '')
        end
        if dies then
          dying[#dying + 1] = id
          dying[#dying + 1] = count
        else
          local at = #taken + 1
          taken[at], delivery.records[at], delivery.counts[at] = id, record, count
        end
      end
    end
  end
end
redis.call('ZCARD', scheduled)
redis.call('ZCARD', once)
redis.call('ZCARD', expiry)
redis.call('XLEN', ready)
local wake_empty = redis.call('LLEN', wake) == 0
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies
--@include lib/results/keep_results
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/sweep/remove_expired
--@include lib/dedup/release_dedup
--@include lib/deliver/prepare_delivery
if crashes + #cancelled > 0 then
  delivery.ended = {dying = dying, cancelled = cancelled, marks = marks, to_park = {}, crashes = crashes}
end
prepare_delivery(delivery, lease, false, false)
--@include lib/deliver/write_delivery
local wrote, successor_due = write_delivery(delivery, expired, 100 + 2 * decided)
--@include lib/deliver/announce
local token = delivery.soonest and announce(delivery.soonest, false)
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
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  wake_after_ends()
end
--@include lib/deliver/append_jobs
append_jobs(reply, delivery)
return reply
