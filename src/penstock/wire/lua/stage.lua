--- Keep jobs aside which are in no queue yet: they will be moved there with all others of their write, or not at all.
--- KEYS     stage commit writes meta
--- ARGV     nonce batch field ttl chunk
---          batch   which batch of its writer: 0, 1, ...
---          field   an attempt and a place in it from 0, with a colon between; the same again = a repeat
---          ttl     ms for which the batch is kept if nothing more is staged
---          chunk   delay and sizes, newline, records
--- META     v
--- RETURNS  {1, nonce, chunks}      kept; chunks: how many are staged of the batch
---          {0, nonce, promised}  the writer has committed this batch or a later one: nothing is kept
---          {-6, nonce, version}  written by a newer protocol
---          {-18, nonce}          what this attempt has staged before is not there any more: nothing is kept
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
