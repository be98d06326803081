--- Read members of a batch. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce wanted number part from
---          number  of the callback, which names the batch
---          part    dead = the members that are dead letters, the oldest death first; values = how each has ended, in the order in which
---                  they have joined, of a batch that keeps values
---          from    0, then `next` of the last reply
--- BOUNDS   from 0 9007199254740991
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, next, count, members: (number, state, failures, header, text)...}  state: dead; of values also done, cancelled,
---                               expired, waiting = not ended, or gone = removed otherwise; failures: of a dead one, its nacks and
---                               crashes; header: of a dead one, the first line of the record; text: the error of a dead one, or the value
---                               of one that is done: JSON, or ! and a flag that tells why it is missing. next: where the next call goes
---                               on, 0 = there are no more. A call looks at 1,000 dead letters, those that have died before the batch left
---                               out, or at 1,000 places, to about 1 MiB of values; count: the members so far, of values
---          {0, nonce}                    no such batch: its callback has ended; or the batch keeps no values
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number or part
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/is_number
if not is_number(number) then
  return {-19, nonce, 'number', string.sub(number, 1, 200)}
elseif part ~= 'dead' and part ~= 'values' then
  return {-19, nonce, 'part', string.sub(part, 1, 200)}
end
from = tonumber(from)
local reply, at = {1, nonce, 0, 0}, 4
local function add(id, state, failures, header, text)
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4], reply[at + 5] = id, state, failures, header, text
  at = at + 5
end
local function add_dead(id)
  local value = redis.call('HGET', held, id) or ''
  local header = string.match(value, '^@[^\n]*\n([^\n]*)') or string.match(value, '^[^\n]*')
  local nacks, crashes, why = string.match(redis.call('HGET', tally, id) or '', '^%S+ (%d+) (%d+) %d+ ?(.*)$')
  add(id, 'dead', string.format('%d', (nacks or 0) + (crashes or 0)), header, why or '')
end
if redis.call('HEXISTS', batches, number) == 0 then
  return {0, nonce}
elseif part == 'dead' then
  local opened = string.sub(number, 1, -12) - 3600000 -- a number may be ahead of the clock
  local died = redis.call('ZRANGE', dead, opened, '+inf', 'BYSCORE', 'LIMIT', from, 1000)
  local owners = #died > 0 and redis.call('HMGET', members, unpack(died)) or {}
  for i = 1, #died do
    if string.match(owners[i] or '', '^!([^:]+)') == number then
      add_dead(died[i])
    end
  end
  reply[3] = #died == 1000 and from + 1000 or 0
  return reply
end
local count = uses_any('notes') and string.match(redis.call('HGET', tally, 'nb' .. number) or '', '^%d+')
if not count then
  return {0, nonce}
end
reply[4] = tonumber(count)
local bytes, last, place = 0, math.min(reply[4], 10000), from
while place < last and place < from + 1000 and bytes < 1048576 do
  place = place + 1
  local outcome = redis.call('HGET', tally, 'nb' .. number .. string.format(':%.0f', place)) or ''
  local id, state, text = string.match(outcome, '^(%S+) (%a+) (.*)$')
  if id then
    bytes = bytes + #text
    add(id, state, '', '', text)
  elseif outcome == '' then -- it was lost
    add(number, 'gone', '', '', '')
  elseif redis.call('ZSCORE', dead, outcome) then
    add_dead(outcome)
  elseif redis.call('HEXISTS', held, outcome) == 1 or #redis.call('XRANGE', ready, outcome, outcome) == 1 then
    add(outcome, 'waiting', '', '', '')
  else
    add(outcome, 'gone', '', '', '')
  end
end
reply[3] = place < last and place or 0
return reply
