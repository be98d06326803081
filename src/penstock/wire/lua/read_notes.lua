--- Read the notes of a job under a delivery. If the time of its wait is over, that is noted as the outcome; else nothing is written.
--- KEYS     @queue
--- ARGV     nonce wanted receipt number
---          wanted, receipt, number   as in note
--- META     v epoch uses seen off
--- RETURNS  {1, nonce, outcome, redriven, voided, waits, note...}  outcome: as in note; redriven: how many notes there were at the last
---                                        redrive; voided: how many bytes of `waits` then, timeouts in them do not count; waits: the
---                                        outcomes of waits, see steps; note: kind, time, name and value, with a tab between two of them
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number or receipt
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/check_note
local refusal, outcome = check_note(receipt, number)
if refusal then
  return refusal
end
local head = (outcome == 1 or outcome == 4) and redis.call('HGET', tally, 'n' .. number) or '0 0 0 0 -'
local count, redriven, voided, wait = string.match(head, '^(%d+) %d+ (%d+) (%d+) (.*)$')
local ends, name = string.match(wait, '^(%d+) (.*)$')
if ends and tonumber(ends) <= now then
  --@include lib/return/end_wait
  redis.call('HDEL', held, '-') -- it passes on a full server
  end_wait(number, head, name, 't', '')
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
local fields = {}
for place = 1, math.min(count, 1000) do
  fields[place] = 'n' .. number .. ':' .. string.format('%.0f', place)
end
local notes = #fields > 0 and redis.call('HMGET', tally, unpack(fields)) or {}
for place = 1, #notes do
  notes[place] = notes[place] or ''
end
local waits = redis.call('HGET', tally, 'n' .. number .. ':0') or ''
return {1, nonce, outcome, tonumber(redriven), tonumber(voided), waits, unpack(notes)}
