--- Promise that what is staged of these attempts will be in the queue. What was promised first holds: it is told, and is to
--- be published. A clear or purge of the queue ends promises.
--- KEYS     stage commit writes meta
--- ARGV     nonce batch keep [attempt chunks...]
---          batch    which batch of its writer
---          keep     ms for which the promise is kept
---          attempt  its name, and how many chunks it has, 1 at least; whichever has its last one has them all
--- META     v
--- RETURNS  {1, nonce, chunks}                     promised; chunks: how many are staged, those of other attempts included
---          {2, nonce, batch, state, stages, at}   promised before, this batch or a later one: state 'promised' or 'done';
---                                                 stages: the attempts and their chunks, with spaces between; at: when
---                                                 it was promised, ms
---          {0, nonce, attempt}                    what this attempt has staged is not there any more; nothing is promised
---          {-6, nonce, version}                   written by a newer protocol
--@include lib/check_version
--@include lib/read_promise (gives: era, promise, promised_batch)
if promised_batch and (promised_batch >= tonumber(batch) or promise[2] ~= 'done') then
  return {2, nonce, promised_batch, promise[2], promise[3] or '', promise[4]}
end
local stages = {}
for i = 1, #attempts, 2 do
  if redis.call('HEXISTS', stage, attempts[i] .. ':' .. string.format('%.0f', attempts[i + 1] - 1)) == 0 then
    return {0, nonce, attempts[i]}
  end
  stages[#stages + 1] = attempts[i] .. ' ' .. attempts[i + 1]
end
local chunks, left = redis.call('HLEN', stage), redis.call('PTTL', writes)
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000)
era = era or at .. ' ' .. (attempts[1] or '') -- attempts have random names
redis.call('HSET', commit, 'batch', batch, 'state', 'promised', 'stages', table.concat(stages, ' '), 'at', at, 'era', era)
redis.call('PEXPIRE', commit, keep)
redis.call('PEXPIRE', stage, keep)
if left < tonumber(keep) then
  redis.call('SET', writes, era, 'PX', keep)
end
return {1, nonce, chunks}
