-- Dead letters are bounded by age and by number; at most `reach` (lib/lapsed) of the oldest are dropped
-- a call, and counted.
--- NEEDS  held dead tally meta now reach drop_bodies
do
  local bounds = redis.call('HMGET', meta, 'dead_age', 'dead_max')
  local age, most = tonumber(bounds[1]) or 1209600000, tonumber(bounds[2]) or 100000
  local old = redis.call('ZRANGE', dead, '-inf', now - age, 'BYSCORE', 'LIMIT', 0, reach)
  local over = redis.call('ZCARD', dead) - #old - most
  if #old < reach and over > 0 then
    old = redis.call('ZRANGE', dead, 0, math.min(#old + over, reach) - 1)
  end
  if #old > 0 then
    redis.call('ZREM', dead, unpack(old))
    redis.call('HDEL', held, unpack(old))
    drop_bodies(old)
    redis.call('HDEL', tally, unpack(old))
    redis.call('HINCRBY', meta, 'trimmed', #old)
  end
end
