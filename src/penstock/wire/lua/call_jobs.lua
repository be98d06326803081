--- Note calls of jobs as the next steps of a job, add those jobs, and give the job back until they have ended. Each end is noted at its
--- place; the last one makes the job due. Without records the job waits for those of this name that have not ended.
--- KEYS     @queue
--- ARGV     nonce wanted receipt number index name total parts print delays [record...]
---          receipt, number  of the job that calls, as in note
---          index    of the first note, as in note: if the next note has another place, the job is given back at once, and nothing is added. So
---                   too if there is no room for the notes
---          name     of the step
---          total    how many jobs the step calls
---          parts    which of them the records are, from 1, separated by blanks; '' = 1, 2, 3...
---          print    of the arguments of them all, 1 to 16 hex digits; '-' = they are not compared
---          delays   for each record the ms until its delivery, separated by blanks
---          record   up to 1000, of at most 1048576 bytes together, without dedup ids. On an ordered queue they have another key than the
---                   job, and the jobs that wait for it. They are added whatever max_length, a pause or the closing of the queue say
---          wanted   as in nack
--- BOUNDS   nonce 1 9007199254740991  index 1 1001  total 1 1000
--- META     v epoch last uses seen off enqueued paused alarm
--- RETURNS  {1, nonce, done}              1: it waits, or was given back
---          {1, nonce, done, code...}     as in nack, of the job
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-10, nonce, index}           record number index is of no known version, asks for lease 0 without a ttl, has a dedup id,
---                                        or is beyond the bounds; nothing done
---          {-19, nonce, name, value}     malformed argument: number, receipt, name, parts, print, delays, or of a record the lease, the ttl, the
---                                        priority as in enqueue, or own_key: on an ordered queue that of the job, or of one that waits for it
--- FROM active  TO scheduled, none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/is_lease
--@include lib/checks/is_duration
--@include lib/checks/check_note
local refusal, code, counters = check_note(receipt, number)
if refusal then
  return refusal
elseif name == '' or #name > 200 or string.find(name, '%c') then
  return {-19, nonce, 'name', string.sub(name, 1, 200)}
elseif print ~= '-' and (#print > 16 or not string.find(print, '^%x+$')) then
  return {-19, nonce, 'print', string.sub(print, 1, 200)}
end
local n, list, record_index, waits, size, seed = #records, records, {}, {}, 0, tonumber(string.sub(number, -8))
total, index = tonumber(total), tonumber(index)
for i = 1, n do
  size = size + #list[i]
  if i > total or size > 1048576 or string.find(string.match(list[i], '^[^\n]*'), ';d=', 1, true) then
    return {-10, nonce, i}
  end
end
for delay in string.gmatch(delays, '[^ ]+') do
  if not is_duration(delay, 0) then
    return {-19, nonce, 'delays', string.sub(delay, 1, 200)}
  end
  waits[#waits + 1] = tonumber(delay)
end
local chosen = {}
for part in string.gmatch(parts, '%d+') do
  chosen[#chosen + 1] = tonumber(string.sub(part, 1, 5))
  if chosen[#chosen] <= (chosen[#chosen - 1] or 0) or chosen[#chosen] > total then
    return {-19, nonce, 'parts', string.sub(parts, 1, 200)}
  end
end
if parts ~= '' and (#chosen ~= n or table.concat(chosen, ' ') ~= parts) then
  return {-19, nonce, 'parts', string.sub(parts, 1, 200)}
end
--@include lib/add/expired_ttl
for i = 1, n do
  local ttl = expired_ttl(records[i], waits[i] or 0)
  if ttl then
    return {-19, nonce, 'ttl', ttl}
  end
end
--@include lib/add/assign_numbers (gives: ms, ids)
--@include lib/add/split_body (gives: is_read)
--@include lib/return/prepare_return (gives: release_dedup, keyed)
--@include lib/add/check_records
local refusal, features = check_records(list, record_index, ids, ms)
if refusal then
  return refusal
end
--@include lib/batches/own_key
local waited_for = own_key(number, list)
if waited_for then
  return {-19, nonce, 'own_key', waited_for}
end
if code ~= 1 and code ~= 4 then
  return {1, nonce, 0, code}
end
redis.call('HLEN', members)
redis.call('XLEN', ready)
--@include lib/meta/use
--@include lib/return/write_return
--@include lib/return/wake_returned
if code == 4 then
  release_dedup({number}, false)
  write_return({}, {}, {number}, {}, {})
  wake_returned(nil)
  return {1, nonce, 1, 4}
end
local head = redis.call('HGET', tally, 'n' .. number) or '0 0 0 0 -'
local count, bytes, redriven = string.match(head, '^(%d+) (%d+)( %d+ %d+) ')
local deliveries, nacked, crashed, released, why = string.match(counters or '1 0 0 0', '^(%d+%+?) (%d+) (%d+) (%d+)(.*)$')
local notes, joined, open = {}, {}, n
count = tonumber(count)
for i = 1, n do
  local field = 'n' .. number .. ':' .. string.format('%.0f', count + i)
  local note = 'c\t' .. string.format('%.0f', now) .. '\t' .. name .. string.format('\t%.0f %.0f ', chosen[i] or i, total) .. print .. ' ' .. ids[i] .. ' open'
  notes[2 * i - 1], notes[2 * i], bytes = field, note, bytes + #note
  joined[2 * i - 1], joined[2 * i] = ids[i], field
end
local at_once = math.min(now, tonumber(string.sub(number, 1, -12)))
-- A failover has lost notes: the next run makes them again. Or there is no room: the next run finds that. 16 bytes are for each end.
if index ~= count + 1 or count + n > 1000 or bytes + 16 * n > 1048576 then
  local returned = {number, at_once}
  if keyed then
    keyed.line_up(returned)
  end
  wake_returned(write_return(returned, {}, {}, {number, deliveries .. ' ' .. nacked .. ' ' .. crashed .. ' ' .. released .. why}, {}))
  redis.call('HINCRBY', meta, 'released', 1)
  return {1, nonce, 1}
end
if n < total then -- some were called before
  local fields = {}
  for i = 1, count do
    fields[i] = 'n' .. number .. ':' .. string.format('%.0f', i)
  end
  local earlier = count > 0 and redis.call('HMGET', tally, unpack(fields)) or {}
  for i = 1, count do
    local own, state = string.match(earlier[i] or '', '^c\t%d+\t([^\t]*)\t%d+ %d+ %S+ %S+ (%l+)')
    open = open + (own == name and state == 'open' and 1 or 0)
  end
end
local due = open > 0 and now + 3162240000000 or at_once
local returned = {number, due}
if keyed then
  keyed.line_up(returned)
end
use('notes')
head = string.format('%.0f %.0f', count + n, bytes) .. redriven .. (open > 0 and string.format(' c%.0f ', open) .. name or ' -')
local soonest = write_return(returned, {}, {}, {number, deliveries .. ' 0 0 ' .. released .. why}, {'n' .. number, head})
redis.call('HINCRBY', meta, 'released', 1)
if n > 0 then
  is_read = true
  --@include lib/add/place_jobs (gives: place, write_places)
  local bodies, priorities = features.bodies, features.priorities
  for i = 1, n do
    local id, at, priority = ids[i], now + (waits[i] or 0), priorities and priorities[i] or 0
    local record = split_body(id, list[i], bodies)
    if at > now or priority > 0 then
      redis.call('HSET', held, id, record)
      at = at > now and at or math.min(now, ms)
      place(id, string.format('%.0f', at), priority)
    else
      redis.call('XADD', ready, id, 'j', record)
    end
    soonest = math.min(soonest, at)
  end
  write_places()
  if #bodies > 0 then
    redis.call('HSET', held, unpack(bodies))
  end
  redis.call('HSET', tally, unpack(notes))
  redis.call('HSET', members, unpack(joined))
  use('batches')
  local created, before, batch = 0, true, nil
  --@include lib/add/note_features
  --@include lib/add/note_added
end
wake_returned(soonest)
return {1, nonce, 1}
