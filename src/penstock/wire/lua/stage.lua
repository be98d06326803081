--- Store a chunk of jobs of a staged write. All jobs of the write are moved into the queue together, or none.
--- KEYS     stage commit writes meta
--- ARGV     nonce batch field ttl chunk
---          batch   number of the writer's batch: 0, 1, ...
---          field   an attempt, a colon and the chunk's place in it, from 0; the same field again = a repeat
---          ttl     ms for which the batch is kept after its last chunk
---          chunk   delay (or one for each record, separated by commas) and sizes, newline, records
--- META     v
--- RETURNS  {1, nonce, chunks}      stored; chunks: the number of staged chunks of the batch
---          {0, nonce, promised}  the writer has committed this batch or a later one: nothing is stored
---          {-6, nonce, version}  written by a newer protocol
---          {-18, nonce}          the earlier chunks of this attempt are gone: nothing is stored
--@include lib/check_version
--@include lib/read_promise (gives: promised_batch)
if promised_batch and promised_batch >= tonumber(batch) then
  return {0, nonce, promised_batch}
end
local attempt, place = string.match(field, '^(.*:)(%d+)$')
if place and tonumber(place) > 0 and redis.call('HEXISTS', stage, attempt .. string.format('%.0f', place - 1)) == 0 then
  return {-18, nonce}
end
local chunks = redis.call('HLEN', stage)
chunks = chunks + redis.call('HSET', stage, field, chunk)
redis.call('PEXPIRE', stage, ttl)
return {1, nonce, chunks}
