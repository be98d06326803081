-- trim_dead(most) drops dead letters above the bounds of age and number, the oldest first. It returns how many.
--- KEYS   held dead meta
--- NEEDS  now drop_bodies forget count_members
--- GIVES  trim_dead
local function trim_dead(most)
  local bounds = redis.call('HMGET', meta, 'dead_age', 'dead_max')
  local max_age, max_length = tonumber(bounds[1]) or 1209600000, tonumber(bounds[2]) or 100000
  local old = redis.call('ZRANGE', dead, '-inf', now - max_age, 'BYSCORE', 'LIMIT', 0, most)
  local over = redis.call('ZCARD', dead) - #old - max_length
  if #old < most and over > 0 then
    old = redis.call('ZRANGE', dead, 0, math.min(#old + over, most) - 1)
  end
  if #old > 0 then
    redis.call('ZREM', dead, unpack(old))
    redis.call('HDEL', held, unpack(old))
    drop_bodies(old)
    forget(old)
    count_members(old, 'failed')
    redis.call('HINCRBY', meta, 'trimmed', #old)
  end
  return #old
end
