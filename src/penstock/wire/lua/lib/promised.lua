-- What the writer has promised last, unless the queue was cleared or purged since. Needs commit and writes; gives era,
-- told (batch, state, stages, at, era) and promised (its batch; nil or false = nothing that counts).
--- NEEDS  writes commit
--- GIVES  era told promised
local era = redis.call('GET', writes)
local told = redis.call('HMGET', commit, 'batch', 'state', 'stages', 'at', 'era')
local promised = era and told[5] == era and tonumber(told[1])
