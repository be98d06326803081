--- Note the value of a step under a delivery. The note stays until the job ends: a later delivery does not run the step again.
--- KEYS     @queue
--- ARGV     nonce wanted receipt number index name value
---          receipt  of the delivery that holds the job
---          index    1 = the first note of the job; the number of its notes, and 1
---          name     of the step: 1 to 200 bytes without control characters
---          value    JSON, at most 65536 bytes, or result_size if that is more
---          wanted, number   as in ack
--- BOUNDS   index 1 1000
--- META     v epoch uses seen off result_size
--- RETURNS  {1, nonce, outcome}           1 noted, also if this same note was there; 4 so too, and the job is to be cancelled; 0 gone,
---                                        -1 stale receipt, -2 not active or at most once, 2 ended before with this same receipt
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number, receipt, index or name
---          {-22, nonce, count}           there is another note, or an earlier one is missing; count: the notes that are there
---          {-23, nonce, most}            the value is larger than it may be, or the notes of the job would have more than 1 MiB;
---                                        most: the limit that it exceeds
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/check_note
local refusal, outcome, counters = check_note(receipt, number)
if refusal then
  return refusal
elseif name == '' or #name > 200 or string.find(name, '%c') then
  return {-19, nonce, 'name', string.sub(name, 1, 200)}
elseif outcome ~= 1 and outcome ~= 4 then
  return {1, nonce, outcome}
end
local head = redis.call('HGET', tally, 'n' .. number)
local count, bytes, redriven = string.match(head or '0 0 0 0 -', '^(%d+) (%d+)( %d+ %d+) ')
local kind, text = 'r', '\t' .. name .. '\t' .. value
index, count = tonumber(index), tonumber(count)
local field = 'n' .. number .. ':' .. string.format('%.0f', index)
if index <= count then
  local before = redis.call('HGET', tally, field) or ''
  if string.match(before, '^(%l)\t%d+') == kind and string.sub(before, string.find(before, '\t', 3, true) or 1) == text then
    return {1, nonce, outcome}
  end
end
if index ~= count + 1 then
  return {-22, nonce, count}
end
local most = math.max(tonumber(result_size) or 0, 65536)
if #value > most then
  return {-23, nonce, most}
end
local note = kind .. '\t' .. string.format('%.0f', now) .. text
bytes = bytes + #note
if bytes > 1048576 then
  return {-23, nonce, 1048576}
end
--@include lib/meta/use
redis.call('HDEL', held, '-') -- it passes on a full server
use('marks')
use('notes')
redis.call('HSET', tally, 'n' .. number, string.format('%.0f %.0f', index, bytes) .. redriven .. ' -', field, note)
local deliveries, others = string.match(counters or '', '^(%d+%+?) %d+ %d+( .*)$')
if deliveries then -- attempts count since the last note
  redis.call('HSET', tally, number, deliveries .. ' 0 0' .. others)
end
if redis.call('HEXISTS', tally, 'n') == 1 then -- so notes of ended jobs go faster than new ones come
  local notes_left, note_bytes_left = 2000, 67108864
  --@include lib/finish/drop_notes
  drop_notes({})
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
return {1, nonce, outcome}
