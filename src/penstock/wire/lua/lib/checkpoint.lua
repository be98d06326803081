-- The batch that a checkpoint has: its number, who has the checkpoint, whether the batch is sealed, the epoch of the queue it is
-- of, and how many jobs were put into it. nil and -1 where there is no checkpoint. (protocol/checkpoints.md)
--- NEEDS  checkpoint
--- GIVES  there holder is_sealed life jobs
local there, holder, is_sealed, life = string.match(redis.call('LINDEX', checkpoint, 0) or '', '^(%d+) (%d+) ([01]) (%x+)$')
local jobs = redis.call('LLEN', checkpoint) - 1
