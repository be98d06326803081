--- Forget what is staged of a batch: when all that was promised is in the queue, or when nothing was promised.
--- KEYS     stage commit meta
--- ARGV     nonce batch keep
---          batch  which batch of its writer
---          keep   ms for which it is remembered that all is in the queue; '' = nothing is known to be there
--- RETURNS  {1, nonce, chunks}    forgotten; chunks: how many were staged
---          {0, nonce, promised}  this batch or a later one was promised, and `keep` is empty: nothing is changed
---          {-6, nonce, version}  written by a newer protocol
local m = redis.call('HMGET', meta, 'v')
--@include lib/version
local chunks = redis.call('HLEN', stage)
local promised = redis.call('HGET', commit, 'batch')
if promised and tonumber(promised) >= tonumber(batch) then
  if keep == '' then
    return {0, nonce, tonumber(promised)}
  elseif promised == batch then
    redis.call('HDEL', commit, 'stages')
    redis.call('HSET', commit, 'state', 'done')
    redis.call('PEXPIRE', commit, keep)
  end
end
redis.call('UNLINK', stage)
return {1, nonce, chunks}
