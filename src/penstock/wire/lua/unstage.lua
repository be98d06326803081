--- Forget what is staged of a batch: when all that was promised is in the queue, or when nothing was promised.
--- KEYS     stage commit writes meta
--- ARGV     nonce batch keep
---          batch  which batch of its writer
---          keep   ms for which it is remembered that all is in the queue; '' = nothing is known to be there
--- META     v
--- RETURNS  {1, nonce, chunks}    forgotten; chunks: how many were staged
---          {0, nonce, promised}  this batch or a later one was promised, and `keep` is empty: nothing is changed
---          {-6, nonce, version}  written by a newer protocol
--@include lib/check_version
local chunks, left = redis.call('HLEN', stage), redis.call('PTTL', writes)
--@include lib/read_promise (gives: promised_batch)
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
redis.call('UNLINK', stage)
return {1, nonce, chunks}
