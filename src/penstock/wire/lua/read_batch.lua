--- Read members of a batch. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce wanted number part from
---          number  of the callback, which names the batch
---          part    dead = the members that are dead letters, the oldest death first
---          from    0, then `next` of the last reply
--- BOUNDS   from 0 9007199254740991
--- META     v epoch seen off
--- RETURNS  {1, nonce, next, members: (number, state, header, text)...}  state: dead; header: the first line of the record; text: the
---                               error. A call looks at 1,000 dead letters, those that have died before the batch left out; next: where
---                               the next call goes on, 0 = there are no more
---          {0, nonce}                    no such batch: its callback has ended
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
elseif part ~= 'dead' then
  return {-19, nonce, 'part', string.sub(part, 1, 200)}
elseif redis.call('HEXISTS', batches, number) == 0 then
  return {0, nonce}
end
from = tonumber(from)
local reply, at = {1, nonce, 0}, 3
local opened = string.sub(number, 1, -12) - 3600000 -- a number may be ahead of the clock
local died = redis.call('ZRANGE', dead, opened, '+inf', 'BYSCORE', 'LIMIT', from, 1000)
local owners = #died > 0 and redis.call('HMGET', members, unpack(died)) or {}
for i = 1, #died do
  local id = died[i]
  if owners[i] == '!' .. number then
    local value = redis.call('HGET', held, id) or ''
    local header = string.match(value, '^@[^\n]*\n([^\n]*)') or string.match(value, '^[^\n]*')
    local error = string.match(redis.call('HGET', tally, id) or '', '^%S+ %d+ %d+ %d+ ?(.*)$') or ''
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, 'dead', header, error
    at = at + 4
  end
end
if #died == 1000 then
  reply[3] = from + 1000
end
return reply
