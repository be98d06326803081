--- Read the notes of a job under a delivery. Nothing is written.
--- KEYS     @queue
--- ARGV     nonce wanted receipt number
---          wanted, receipt, number   as in note
--- META     v epoch uses seen off
--- RETURNS  {1, nonce, outcome, redriven, note...}  outcome: as in note; redriven: how many notes there were at the last redrive; note:
---                                        kind, time, name and value, with a tab between two of them
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number or receipt
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/check_note
local refusal, outcome = check_note(receipt, number)
if refusal then
  return refusal
end
local head = (outcome == 1 or outcome == 4) and redis.call('HGET', tally, 'n' .. number) or '0 0 0 -'
local count, redriven = string.match(head, '^(%d+) %d+ (%d+)')
local fields = {}
for place = 1, math.min(count, 1000) do
  fields[place] = 'n' .. number .. ':' .. string.format('%.0f', place)
end
local notes = #fields > 0 and redis.call('HMGET', tally, unpack(fields)) or {}
for place = 1, #notes do
  notes[place] = notes[place] or ''
end
return {1, nonce, outcome, tonumber(redriven), unpack(notes)}
