--- Give jobs up: they become dead letters. A call by id also buries waiting jobs.
--- KEYS     @queue
--- ARGV     nonce wanted common reason trace [number...]
---          reason  text kept with the job, at most 1024 bytes
---          trace   as in nack
---          wanted, common, number   as in ack
--- META     v epoch uses seen off paused alarm full
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -1 stale receipt, -2 dead already or at most once, 2 ended before
---                                        with this same receipt
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active, ready, scheduled  TO dead
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local count, ids, codes, where, counts = checked.count, checked.ids, checked.codes, checked.where, checked.counts
--@include lib/return/describe_failure
--@include lib/return/void_receipts
--@include lib/checks/code_each
local has_receipt = code_each(checked, common, numbers)
local wants_room = full > now and redis.call('LLEN', space) == 0
local dying, new_counters, marks, done, waited, moved, twice = {}, {}, {}, 0, {}, {}, {}
for i = 1, count do
  local id = ids[i]
  if codes[i] == 1 and where[i] == 'once' then
    codes[i] = -2
  elseif codes[i] == -2 and twice[id] then
    codes[i] = 2
  elseif codes[i] == -2 and not has_receipt[i] then
    local entry = redis.call('XRANGE', ready, id, id)[1]
    if entry then
      codes[i] = 1
      moved[#moved + 1] = id
      moved[#moved + 1] = entry[2][2]
      waited[#waited + 1] = id
    elseif redis.call('ZSCORE', scheduled, id) or redis.call('ZSCORE', parked, id) then
      codes[i] = 1
      waited[#waited + 1] = id
    end
  end
  if codes[i] == 1 then
    twice[id] = true
    local d, rest = string.match(counts[i] or (where[i] and '1 0 0 0' or '0 0 0 0'), '^(%d+%+?)( %d+ %d+ %d+)')
    done = done + 1
    if not has_receipt[i] and where[i] then
      d = void_receipts(d)
    end
    dying[#dying + 1] = id
    new_counters[#new_counters + 1] = id
    new_counters[#new_counters + 1] = d .. rest .. ' ' .. string.sub(reason, 1, 1024)
    if where[i] and (reason ~= '' or trace ~= '') then
      marks[#marks + 1] = 'e' .. id
      marks[#marks + 1] = describe_failure(id, redis.call('HGET', held, id) or '', reason, trace)
    end
  end
end
--@include lib/return/prepare_return (gives: release_dedup, has_urgent)
release_dedup(dying, false)
if #waited > 0 then
  redis.call('HDEL', held, '-')
  if #moved > 0 then
    redis.call('HSET', held, unpack(moved))
    redis.call('XDEL', ready, unpack(waited))
  end
  redis.call('ZREM', scheduled, unpack(waited))
  if has_urgent then
    redis.call('ZREM', urgent, unpack(waited))
  end
end
--@include lib/return/write_return
--@include lib/return/wake_returned
if #dying > 0 then
  wake_returned(write_return({}, dying, {}, new_counters, marks))
end
if wants_room and #waited > 0 then
  redis.call('RPUSH', space, '1')
end
if done == count then
  return {1, nonce, done}
end
return {1, nonce, done, unpack(codes)}
