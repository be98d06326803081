--- Delete the staged chunks of a batch, after all promised jobs are in the queue, or if nothing was promised.
--- KEYS     @queue stage commit
--- ARGV     nonce batch keep
---          batch  number of the writer's batch
---          keep   ms for which to remember that all jobs are in the queue; '' = they are not known to be there
--- BOUNDS   batch 0 9007199254740991  keep? 1 3162240000000
--- META     v
--- RETURNS  {1, nonce, chunks}    deleted; chunks: the number of staged chunks
---          {0, nonce, promised}  this batch or a later one was promised, and `keep` is empty: nothing changes
---          {-6, nonce, version}  written by a newer protocol
---          {-19, nonce, name, value}  malformed argument
--@include lib/checks/check_version
local chunks, left = redis.call('HLEN', stage), redis.call('PTTL', writes)
redis.call('HLEN', staged)
--@include lib/read/read_promise (gives: promised_batch)
if promised_batch and promised_batch >= tonumber(batch) then
  if keep == '' then
    return {0, nonce, promised_batch}
  elseif promised_batch == tonumber(batch) then
    redis.call('HDEL', commit, 'stages')
    redis.call('HSET', commit, 'state', 'done')
    redis.call('PEXPIRE', commit, keep)
    if left < tonumber(keep) then
      redis.call('PEXPIRE', writes, keep)
    end
  end
end
redis.call('HDEL', staged, string.match(stage, '%w+:%d+$'))
redis.call('UNLINK', stage)
return {1, nonce, chunks}
