--- Store a chunk of jobs of a staged write. All jobs of the write are moved into the queue together, or none.
--- KEYS     @queue stage commit
--- ARGV     nonce batch field ttl chunk
---          batch   number of the writer's batch: 0, 1, ...
---          field   an attempt, a colon and the chunk's place in it, from 0; the same field again = a repeat
---          ttl     ms for which the batch is kept after its last chunk
---          chunk   delay (or one for each record, separated by commas) and sizes, newline, records
--- BOUNDS   batch 0 9007199254740991  ttl 1 3162240000000
--- META     v
--- RETURNS  {1, nonce, chunks}      stored; chunks: the number of staged chunks of the batch
---          {0, nonce, promised}  the writer has committed this batch or a later one: nothing is stored
---          {-6, nonce, version}  written by a newer protocol
---          {-18, nonce}          the earlier chunks of this attempt are gone: nothing is stored
---          {-10, nonce, index}  record number index is one that `publish` would refuse with this code
---          {-19, nonce, name, value}  malformed argument: chunk, a delay, or of a record the lease, ttl or window, or a ttl that does not
---                                end after the delay
--@include lib/checks/check_version
--@include lib/read/read_promise (gives: promised_batch)
if promised_batch and promised_batch >= tonumber(batch) then
  return {0, nonce, promised_batch}
end
local attempt, place = string.match(field, '^(.*:)(%d+)$')
if place and tonumber(place) > 0 and redis.call('HEXISTS', stage, attempt .. string.format('%.0f', place - 1)) == 0 then
  return {-18, nonce}
end
--@include lib/read/read_staged (gives: batch_name, batch_rows)
local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
--@include lib/checks/is_duration
--@include lib/add/read_delays
if not string.find(chunk, '^%S*[ %d]*\n') then
  return {-19, nonce, 'chunk', string.sub(chunk, 1, 200)}
end
local delays, longest, malformed = read_delays(string.match(chunk, '^%S*'), now)
if malformed then
  return {-19, nonce, 'delay', malformed}
end
--@include lib/add/expired_ttl
--@include lib/add/wrong_time
local row, at = 0, string.find(chunk, '\n', 1, true) + 1
for size in string.gmatch(string.match(chunk, '^%S*([^\n]*)'), '%d+') do -- once promised, no record can be refused
  row = row + 1
  local stop = math.min(string.find(chunk, '\n', at, true) or math.huge, at + size)
  local header = string.sub(chunk, at, stop - 1)
  local name, value = wrong_time(header, now)
  local ttl = longest > 0 and expired_ttl(header, delays[row] or longest)
  if name or ttl then
    return {-19, nonce, name or 'ttl', value or ttl}
  end
  local is_endless = size + 0 > 4096 and (#header > 16383 or stop == at + size)
  if is_endless or string.byte(header) ~= 49 or not string.find(header, ';d=[^;]')
    or string.find(header, '^1;l=0') and not string.find(header, '^1;l=0%d*;t=') then
    return {-10, nonce, row}
  end
  at = at + size
end
local chunks, others, left = redis.call('HLEN', stage), redis.call('HLEN', staged), redis.call('PTTL', staged)
local ended = {}
if not batch_rows and others > 0 then -- a new write removes the entries of those that have expired
  local entries = redis.call('HGETALL', staged)
  for i = 1, #entries, 2 do
    if tonumber(string.match(entries[i + 1], '^%d+')) <= now then
      ended[#ended + 1] = entries[i]
    end
  end
end
local added = redis.call('HSET', stage, field, chunk)
redis.call('PEXPIRE', stage, ttl)
if #ended > 0 then
  redis.call('HDEL', staged, unpack(ended))
end
if batch_rows or others - #ended < 1000 then
  local _, rows = string.gsub(string.match(chunk, '^[^\n]*'), ' ', ' ')
  redis.call('HSET', staged, batch_name, string.format('%.0f %.0f', now + ttl, (batch_rows or 0) + added * rows))
  if left < tonumber(ttl) then
    redis.call('PEXPIRE', staged, ttl)
  end
end
chunks = chunks + added
return {1, nonce, chunks}
