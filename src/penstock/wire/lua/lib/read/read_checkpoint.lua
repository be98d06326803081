-- Read the batch of a checkpoint: its number, the number of the taking, if the batch is sealed, the epoch of its queue, and
-- the number of its jobs. nil and -1 if there is no checkpoint (protocol/checkpoints.md).
--- NEEDS  checkpoint
--- GIVES  current_batch holder is_sealed batch_epoch jobs
local current_batch, holder, is_sealed, batch_epoch = string.match(redis.call('LINDEX', checkpoint, 0) or '', '^(%d+) (%d+) ([01]) (%x+)$')
local jobs = redis.call('LLEN', checkpoint) - 1
