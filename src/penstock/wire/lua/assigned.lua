--- Read a page of the receipts of a checkpoint's batch. Nothing changes.
--- KEYS     @queue checkpoint
--- ARGV     nonce fence batch start count
---          fence  '' = not checked; else as in assign
---          batch  number of the batch
---          start  the number of receipts to skip
---          count  1 to 1000
--- BOUNDS   fence? 0 9007199254740991  batch 0 9007199254740991  start 0 9007199254740991  count 1 1000
--- META     v epoch seen off
--- RETURNS  {1, nonce, now, epoch, jobs, sealed, receipt...}  jobs: in the whole batch; receipt: number, a blank, receipt
---          {0, nonce, batch}             the checkpoint has this other batch; '' = none
---          {-6, nonce, version}          written by a newer protocol
---          {-17, nonce, fence}           another client has taken the checkpoint over
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/meta/now
--@include lib/read/read_checkpoint (gives: current_batch, holder, is_sealed, batch_epoch, jobs)
if holder and fence ~= '' and tonumber(fence) < tonumber(holder) then
  return {-17, nonce, holder}
end
if current_batch ~= batch or batch_epoch ~= epoch then
  return {0, nonce, current_batch and batch_epoch == epoch and current_batch or ''}
end
return {1, nonce, now, batch_epoch, jobs, tonumber(is_sealed), unpack(redis.call('LRANGE', checkpoint, start + 1, start + count))}
