--- Acknowledge a delivery and add the jobs that follow it, in one step.
--- KEYS     @queue
--- ARGV     nonce wanted common window number value delays [record...]
---          wanted, common, window   as in ack; common is the receipt of the job
---          value    the result of the job, as in ack; read only with a line feed in common. `!next` at its end: the job is a link of a
---                   chain, and the first record follows it. A link that cancel has marked ends as cancelled
---          delays   for each record the ms until its delivery, separated by blanks. In front of them may stand `on` as in
---                   open_batch, also with a +: the first record is the callback of a closed batch, and the others are its members.
---                   With a + there may be none: the callback is due at its delay
---          record   1 to 16, of at most 65536 bytes together, without dedup ids; behind a link 1 to 17, of at most 1048576 bytes; of a batch 2 to 1001 (with a +: from 1), of at most 1048576
---                   bytes. They are added whatever max_length, a pause or the closing of the queue say
--- BOUNDS   nonce 1 9007199254740991  window? 0 3162240000000
--- META     v epoch last uses full seen off enqueued acked=acked_before paused alarm
--- RETURNS  {1, nonce, first, count}      acknowledged; the numbers of the jobs are first, first + 1, ...
---          {0, nonce, outcome}            not acknowledged, and nothing added: 0 gone, -1 stale receipt, -2 dead, 2 ended before
---                                        with this same receipt, 4 a link of a chain that was cancelled: it has ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-10, nonce, index}           record number index is of no known version, asks for lease 0 without a ttl, has a dedup id,
---                                        is a callback with a ttl or a key, or is missing or beyond the bounds; nothing done
---          {-19, nonce, name, value}     malformed argument: number, a time of keeping, delays, or of a record
---                                        the lease, the ttl, the priority as in enqueue, or own_key: on an ordered queue that of a job which
---                                        waits for the place that it would get
--- FROM active, ready, scheduled  TO done
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes, change)
--@include lib/checks/is_lease
--@include lib/checks/is_duration
--@include lib/results/keep_results
local numbers = {number, string.find(common, '\n', 1, true) and value or nil}
local has_link = string.sub(numbers[2] or '', -5) == '!next'
--@include lib/results/check_results (gives: results_of)
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local ids, codes = checked.ids, checked.codes
local n, list, record_index, waits, size, seed = #records, records, {}, {}, 0, tonumber(string.sub(number, -8))
local on, values = string.match(delays, '^(%a+)(%+?)')
on = (on == 'success' or on == 'failure' or on == 'finished') and on or nil
local first_delay, least, most, most_bytes = on and #on + #values + 1 or 1, on and values == '' and 2 or 1, on and 1001 or has_link and 17 or 16, (on or has_link) and 1048576 or 65536
if n < least then
  return {-10, nonce, n + 1}
elseif on and (string.find(list[1], '^1[;l=%d]*;t=') or string.find(list[1], '^[^\n]*;q=')) then
  return {-10, nonce, 1}
end
for i = 1, n do
  size = size + #list[i]
  if i > most or size > most_bytes or string.find(string.match(list[i], '^[^\n]*'), ';d=', 1, true) then
    return {-10, nonce, i}
  end
end
for delay in string.gmatch(string.sub(delays, first_delay), '[^ ]+') do
  if not is_duration(delay, 0) then
    return {-19, nonce, 'delays', string.sub(delay, 1, 200)}
  end
  waits[#waits + 1] = tonumber(delay)
end
--@include lib/add/expired_ttl
for i = 1, n do
  local ttl = expired_ttl(records[i], waits[i] or 0)
  if ttl then
    return {-19, nonce, 'ttl', ttl}
  end
end
--@include lib/finish/find_done
local done, freed = find_done(checked)
local acked = #done
if acked == 0 then -- write something, so that a WAIT after this call proves replication
  redis.call('HDEL', held, '-')
  redis.call('HSET', held, '-', '')
  redis.call('HDEL', held, '-')
  return {0, nonce, codes[1] or 0}
end
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup (gives: write_ends)
release_dedup(done, true, tonumber(window))
local wants_room = freed > n and full > now and redis.call('LLEN', space) == 0
local sweep_limit = 100 + 2 * n
--@include lib/dedup/expired_windows
local _, close_windows = expired_windows(sweep_limit)
local wake_empty, results = redis.call('LLEN', wake) == 0, results_of(ids, codes)
redis.call('XLEN', ready)
redis.call('ZCARD', scheduled)
redis.call('HLEN', batches)
redis.call('HLEN', members)
--@include lib/add/assign_numbers (gives: ms, first, ids)
--@include lib/add/split_body (gives: is_read)
--@include lib/add/check_records
local refusal, features = check_records(list, record_index, ids, ms)
if refusal then
  return refusal
end
local priorities, bodies = features.priorities, features.bodies
--@include lib/add/place_jobs (gives: place, write_places)
local is_link = results and string.sub(results.values[1] or '', -5) == '!next'
if is_link and uses_any('marks') and redis.call('HEXISTS', tally, 'c' .. number) == 1 then
  --@include lib/return/end_cancelled
  end_cancelled(done)
  local successor_due, token = write_ends(), false
  if successor_due and paused ~= 'out' and paused ~= 'all' then
    --@include lib/deliver/announce
    token = successor_due <= now or announce(successor_due, false)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  wake_after_ends()
  return {0, nonce, 4}
elseif is_link then
  results.values[1] = results.values[1] .. ' ' .. first
end
--@include lib/batches/keeps_values
local outer, outer_place = string.match(uses_any('batches') and redis.call('HGET', members, number) or '', '^([^:]+):?(%d*)$')
is_read = keeps_values(outer) == 1
local call_field = string.byte(outer or '') == 110 and outer .. ':' .. outer_place -- n: a step has called the job
--@include lib/batches/own_key
local gets_place = outer and (not call_field or on or n == 1 or is_link)
local waited_for = gets_place and own_key(call_field and string.sub(outer, 2) or outer, call_field and is_link and {list[1]} or list)
if waited_for then
  return {-19, nonce, 'own_key', waited_for}
end
if call_field then
  outer = nil
  local caller, note = string.match(call_field, '^(n.*):'), redis.call('HGET', tally, call_field)
  local front = string.match(note or '', '^(c\t%d+\t[^\t]*\t%d+ %d+ %S+ )%S+ open$')
  if gets_place and front and redis.call('HEXISTS', tally, caller) == 1 then -- what follows it gets its place
    is_read = true
    redis.call('HDEL', members, number)
    redis.call('HSET', members, first, call_field)
    redis.call('HSET', tally, call_field, front .. first .. ' open')
  end
end
keep_results(done, 'done', results)
--@include lib/batches/join_batch
if outer then -- before the batch counts down
  redis.call('HDEL', held, '-')
  join_batch(on and {first} or ids, outer, (on or n == 1 or is_link) and outer_place ~= '' and outer_place)
end
--@include lib/finish/remove_done (gives: removed)
close_windows()
local successor_due, soonest = write_ends(), nil
for i = 1, n do
  local id, due = ids[i], now + (waits[i] or 0)
  local record, priority = split_body(id, list[i], bodies), priorities and priorities[i] or 0
  if on and i == 1 and n > 1 then -- the callback
    due, is_read = 9007199254740991, values == '+'
    redis.call('HSET', held, id, record)
    redis.call('ZADD', scheduled, '9007199254740991', id)
  elseif due > now or priority > 0 then
    due = due > now and due or math.min(now, ms)
    redis.call('HSET', held, id, record)
    place(id, string.format('%.0f', due), priority)
  else
    redis.call('XADD', ready, id, 'j', record)
  end
  soonest = math.min(soonest or due, due)
end
write_places()
if #bodies > 0 then
  redis.call('HSET', held, unpack(bodies))
end
if on then
  redis.call('HSET', batches, first, (on == 'success' and 's' or on == 'failure' and 't' or 'f') .. ' 0 0 0 0 ' .. (n > 1 and '0' or '2'))
  --@include lib/meta/use
  use('batches')
  use('counters')
  if values == '+' then
    redis.call('HSET', tally, 'nb' .. first, '0 0')
    use('marks')
    use('notes')
  end
  if n > 1 then
    join_batch({unpack(ids, 2)}, first)
  end
end
if successor_due then
  soonest = math.min(soonest, successor_due)
end
--@include lib/deliver/announce
local token = soonest <= now or announce(soonest, false)
change('acked', acked_before + removed)
local created, before, batch = 0, true, nil
--@include lib/add/note_features
--@include lib/add/note_added
if token and wake_empty and paused ~= 'out' and paused ~= 'all' then
  redis.call('RPUSH', wake, '1')
end
wake_after_ends()
if wants_room then
  redis.call('RPUSH', space, '1')
end
return {1, nonce, first, n}
