--- Look at a job for a client that watches it, read what its handler has told, and perhaps mark it as watched; nothing else changes.
--- KEYS     @queue emitted
--- ARGV     nonce wanted number cursor await
---          cursor    id of the last entry of emitted that the client has; 0-0 = none
---          await    1 = the caller waits: the entries in finished and in emitted tell it when to look again
---                   (protocol/watching.md); '' = only look, write nothing
---          wanted, number   as in note
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, now, last, state, at, attempt, flags, value, delivered, counters, progress, failures, entries: (id, kind, text)...}
---                                        last: id of the last entry of finished, '' = not asked; state: '' gone, ready, scheduled,
---                                        parked, active or once, and dead, done, cancelled or expired as in results; at: due time,
---                                        end of the lease, or ms of the end; attempt, flags, value: of a job that has ended, as in results;
---                                        delivered: ms of the last delivery, 0 = none; counters, progress and failures: as in show,
---                                        without the trace; entries: up to 1000 entries of emitted behind cursor, about 1 MiB; kind and text: as
---                                        they are stored. Fewer than there are: call again
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number or cursor
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/is_number
if not is_number(number) then
  return {-19, nonce, 'number', string.sub(number, 1, 200)}
elseif #cursor > 40 or not string.find(cursor, '^%d+%-%d+$') then
  return {-19, nonce, 'cursor', string.sub(cursor, 1, 200)}
end
--@include lib/read/result_of
--@include lib/read/state_of
local job = result_of(number)
local state, at, delivered = job[1] or '', job[2] or '0', '0'
if state == 'waiting' then
  local value = redis.call('HGET', held, number)
  state, at = 'ready', string.sub(number, 1, -12)
  if value then
    state, at = state_of(number)
    at = string.format('%.0f', at)
    delivered = string.match(value, '^@(%d+)') or '0'
  end
end
local counters = redis.call('HGET', tally, number) or ''
local marks = redis.call('HMGET', tally, 'p' .. number, 'e' .. number)
local failures = string.match((marks[2] or '') .. '\n\n', '^(.-)\n\n')
local reply = {1, nonce, now, '', state, at, job[3] or '0', job[5] or '', job[6] or '', delivered, counters, marks[1] or '', failures}
local bytes = 0
for _, entry in ipairs(redis.call('XRANGE', emitted, '(' .. cursor, '+', 'COUNT', '1000')) do
  if bytes < 1048576 then
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entry[1], entry[2][1], entry[2][2]
    bytes = bytes + #entry[2][2]
  end
end
if await == '1' then
  local last = redis.call('XREVRANGE', finished, '+', '-', 'COUNT', 1)[1]
  reply[4] = last and last[1] or '0-0'
  if job[1] == 'waiting' then
    redis.call('ZCARD', expiry)
    --@include lib/meta/use
    redis.call('HDEL', held, '-')
    local score = string.format('%.0f', 4503599627370496 + now)
    redis.call('ZADD', expiry, score, '?' .. number, score, '!' .. number)
    use('awaited')
    if #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
  end
end
return reply
