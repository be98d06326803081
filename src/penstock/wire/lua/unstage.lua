--- Forget what is staged of a batch: when all that was promised is in the queue, or when nothing was promised.
--- KEYS     stage commit
--- ARGV     nonce batch keep
---          batch  which batch of its writer
---          keep   ms for which it is remembered that all is in the queue; '' = nothing is known to be there
--- RETURNS  {1, nonce}            forgotten
---          {0, nonce, promised}  this batch or a later one was promised, and `keep` is empty: nothing is changed
local promised = redis.call('HGET', commit, 'batch')
if promised and tonumber(promised) >= tonumber(batch) then
  if keep == '' then
    return {0, nonce, tonumber(promised)}
  elseif promised == batch then
    redis.call('HSET', commit, 'state', 'done')
    redis.call('HDEL', commit, 'stages')
    redis.call('PEXPIRE', commit, keep)
  end
end
redis.call('UNLINK', stage)
return {1, nonce}
