-- Find the time until which nothing of the queue is delivered: held_until, nil = it is not held. A time more than 25 hours ahead was written by
-- a wrong clock, and counts as none (protocol/rate.md, Holds).
--- KEYS   meta
--- NEEDS  now uses
--- GIVES  held_until
local held_until = uses_any('holds') and tonumber(redis.call('HGET', meta, 'held_until')) or 0
held_until = held_until > now and held_until <= now + 90000000 and held_until or nil
