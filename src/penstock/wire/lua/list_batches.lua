--- Read the state of batches, by number or all of them. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce wanted cursor [number...]
---          cursor  with numbers ''; without: '0', then that of the last reply. Batches that are opened or end meanwhile may be
---                  missing or come twice
---          number  of callbacks, 1 to 100
--- META     v epoch seen off
--- RETURNS  {1, nonce, now, epoch, cursor, batches: (number, state, on, total, done, failed, dead)...}  cursor: '0' = there are no
---                               more; state: open, waiting (closed, and waiting for members), called (its callback was due), failed (too
---                               many failures: the callback is dead), abandoned (not closed in time: the callback is dead); on: s = success,
---                               f = finished, t = failure, u = failure, and the follow-up was added; dead: members that are dead letters,
---                               which neither done nor failed count. Batches that are gone are left out
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: cursor or number
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/is_number
--@include lib/checks/is_cursor
if not is_cursor(cursor) and (#numbers == 0 or cursor ~= '') then
  return {-19, nonce, 'cursor', string.sub(cursor, 1, 200)}
end
--@include lib/batches/batch_state
local found, last = {}, '0'
if #numbers == 0 then
  local page = redis.call('HSCAN', batches, cursor, 'COUNT', 100)
  last, found = page[1], page[2]
end
for i = 1, #numbers do
  if not is_number(numbers[i]) then
    return {-19, nonce, 'number', string.sub(numbers[i], 1, 200)}
  end
  found[i * 2 - 1], found[i * 2] = numbers[i], redis.call('HGET', batches, numbers[i])
end
local reply, at = {1, nonce, now, epoch or '', last}, 5
for i = 1, #found, 2 do
  local entry, state = batch_state(found[i], found[i + 1])
  local on, total, done, failed, died = string.match(entry or '', '^(%a) (%d+) (%d+) (%d+) (%d+)')
  if on then
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = found[i], state, on, tonumber(total)
    reply[at + 5], reply[at + 6], reply[at + 7] = tonumber(done), tonumber(failed), tonumber(died)
    at = at + 7
  end
end
return reply
