-- Read the last promise of the writer, unless the queue was cleared or purged since. Gives era, promise (batch, state,
-- stages, at, era) and promised_batch (nil or false = none).
--- KEYS   writes
--- NEEDS  commit
--- GIVES  era promise promised_batch
local era = redis.call('GET', writes)
local promise = redis.call('HMGET', commit, 'batch', 'state', 'stages', 'at', 'era')
local promised_batch = era and promise[5] == era and tonumber(promise[1])
