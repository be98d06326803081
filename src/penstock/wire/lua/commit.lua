--- Promise that the staged jobs of these attempts will be in the queue. Only the first promise of a batch counts: a later
--- call returns it, and its writer publishes what was promised first. A clear or purge of the queue ends promises.
--- KEYS     @queue stage commit
--- ARGV     nonce batch keep rows [attempt chunks...]
---          batch    number of the writer's batch
---          keep     ms for which the promise is kept
---          rows     the number of jobs of these attempts, for `stats`
---          attempt  its name, and the number of its chunks, at least 1; if the last chunk is there, all are
--- BOUNDS   batch 0 9007199254740991  keep 1 3162240000000  rows 0 9007199254740991
--- META     v
--- RETURNS  {1, nonce, chunks}                     promised; chunks: the number of staged chunks, those of other attempts included
---          {2, nonce, batch, state, stages, at}   promised before, this batch or a later one: state 'promised' or 'done';
---                                                 stages: the attempts and their chunks, separated by spaces; at: time
---                                                 of the promise, ms
---          {0, nonce, attempt}                    the chunks of this attempt are gone; nothing is promised
---          {-6, nonce, version}                   written by a newer protocol
---          {-19, nonce, name, value}              malformed argument: chunks
--@include lib/checks/check_version
--@include lib/read/read_promise (gives: era, promise, promised_batch)
if promised_batch and (promised_batch >= tonumber(batch) or promise[2] ~= 'done') then
  return {2, nonce, promised_batch, promise[2], promise[3] or '', promise[4]}
end
local stages = {}
for i = 1, #attempts, 2 do
  local count = attempts[i + 1] or ''
  if #count > 15 or not string.find(count, '^[1-9]%d*$') then
    return {-19, nonce, 'chunks', string.sub(count, 1, 200)}
  end
  if redis.call('HEXISTS', stage, attempts[i] .. ':' .. string.format('%.0f', count - 1)) == 0 then
    return {0, nonce, attempts[i]}
  end
  stages[#stages + 1] = attempts[i] .. ' ' .. count
end
--@include lib/read/read_staged (gives: batch_name, batch_rows)
local chunks, left, index_left = redis.call('HLEN', stage), redis.call('PTTL', writes), redis.call('PTTL', staged)
local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local at = string.format('%.0f', now)
era = era or at .. ' ' .. (attempts[1] or '') -- attempts have random names
redis.call('HSET', commit, 'batch', batch, 'state', 'promised', 'stages', table.concat(stages, ' '), 'at', at, 'era', era)
redis.call('PEXPIRE', commit, keep)
redis.call('PEXPIRE', stage, keep)
if batch_rows then
  redis.call('HSET', staged, batch_name, string.format('%.0f %s %s', now + keep, rows, era))
  if index_left < tonumber(keep) then
    redis.call('PEXPIRE', staged, keep)
  end
end
if left < tonumber(keep) then
  redis.call('SET', writes, era, 'PX', keep)
end
return {1, nonce, chunks}
