--- Delete the receipts of a checkpoint's batch: its jobs are finished, or come back when their leases end.
--- KEYS     @queue checkpoint
--- ARGV     nonce fence batch
---          fence  as in assign
---          batch  number of the batch; any other batch is kept
--- BOUNDS   fence? 0 9007199254740991  batch 0 9007199254740991
--- META     v epoch seen off
--- RETURNS  {1, nonce, jobs}              the number of receipts it had
---          {0, nonce, batch}             the checkpoint has this other batch; '' = none
---          {-6, nonce, version}          written by a newer protocol
---          {-17, nonce, fence}           another client has taken the checkpoint over
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/meta/now
--@include lib/read/read_checkpoint (gives: current_batch, holder, batch_epoch, jobs)
if holder and (tonumber(fence) or 0) < tonumber(holder) then
  return {-17, nonce, holder}
end
if current_batch ~= batch or batch_epoch ~= epoch then
  return {0, nonce, current_batch and batch_epoch == epoch and current_batch or ''}
end
redis.call('HDEL', held, '-')
redis.call('LTRIM', checkpoint, 0, 0)
redis.call('LSET', checkpoint, 0, batch .. ' ' .. fence .. ' 1 ' .. batch_epoch)
return {1, nonce, jobs}
