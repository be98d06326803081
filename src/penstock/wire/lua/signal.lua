--- Give a job a signal: the outcome of its wait for this name, now or later. The first outcome of a name stays. A job that waits for it is
--- due at once, at the place of its creation; if the time of the wait is over, the job keeps its time, which may be that of a retry.
--- KEYS     @queue
--- ARGV     nonce wanted number name value
---          name     1 to 200 bytes of UTF-8 without control characters
---          value    JSON without line feeds, at most 65536 bytes, or result_size if that is more
---          number   the job
--- META     v epoch uses seen off paused alarm result_size
--- RETURNS  {1, nonce, outcome, same}     1 taken; 2 there is an outcome of this name, and nothing changes; same: 1 = it is a signal with this
---                                        value, as after a lost reply, else 0; 0 gone, or its ttl has ended; -2 delivered at most once
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number, name or signal, which is the value
---          {-23, nonce, most}            the value is larger than it may be, or the signals of the job would have more than 262144 bytes, timeouts
---                                        not counted, or its notes and the outcomes of its waits more than 1 MiB; most: the limit that it
---                                        exceeds
--- FROM ready  TO scheduled
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/is_number
--@include lib/checks/is_utf8
if not is_number(number) then
  return {-19, nonce, 'number', string.sub(number, 1, 200)}
elseif name == '' or #name > 200 or string.find(name, '%c') or not is_utf8(name) then
  return {-19, nonce, 'name', string.sub(name, 1, 200)}
elseif value == '' or string.find(value, '\n', 1, true) then
  return {-19, nonce, 'signal', string.sub(value, 1, 200)}
end
local entry, ends = redis.call('XRANGE', ready, number, number)[1], redis.call('ZSCORE', expiry, number)
local stored = entry and entry[2][2] or redis.call('HGET', held, number)
--@include lib/deliver/lease_terms (gives: lease_and_ttl)
if not stored or ends and tonumber(ends) <= now then
  return {1, nonce, 0, 0}
elseif lease_and_ttl(string.match(stored, '^@[^\n]*\n(.*)$') or stored) == 0 then
  return {1, nonce, -2, 0}
end
local head = redis.call('HGET', tally, 'n' .. number) or '0 0 0 0 -'
local bytes, voided, wait = string.match(head, '^%d+ (%d+) %d+ (%d+) (.*)$')
local outcomes = redis.call('HGET', tally, 'n' .. number .. ':0') or ''
--@include lib/return/find_outcome
local kind, winner = find_outcome(outcomes, voided, name)
if kind then
  return {1, nonce, 2, kind == 's' and winner == value and 1 or 0}
end
--@include lib/return/count_timeouts
local most, size = math.max(tonumber(result_size) or 0, 65536), #name + #value + 18
local ends_wait, awaited = string.match(wait, '^(%d+) (.*)$')
local reserved = awaited and awaited ~= name and #awaited + 18 or 16 * (string.match(wait, '^c(%d+) ') or 0) -- for the end of its time, or of calls
local signal_bytes = #outcomes + size
if signal_bytes > 262144 then
  local _, of_timeouts = count_timeouts(outcomes)
  signal_bytes = signal_bytes - of_timeouts
end
if #value > most then
  return {-23, nonce, most}
elseif signal_bytes > 262144 then
  return {-23, nonce, 262144}
elseif bytes + size + reserved > 1048576 then
  return {-23, nonce, 1048576}
end
--@include lib/return/end_wait
--@include lib/meta/use
local function note_signal()
  redis.call('HDEL', held, '-') -- it passes on a full server
  use('marks')
  use('notes')
  end_wait(number, head, name, 's', value)
end
if entry or awaited == name and tonumber(ends_wait) > now and redis.call('ZSCORE', scheduled, number) then
  --@include lib/return/prepare_return
  note_signal()
  if entry then
    redis.call('HSET', held, number, stored)
    redis.call('XDEL', ready, number)
  end
  --@include lib/return/write_return
  --@include lib/return/wake_returned
  wake_returned(write_return({number, math.min(now, tonumber(string.sub(number, 1, -12)))}, {}, {}, {}, {}))
else
  note_signal()
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
return {1, nonce, 1, 0}
