-- Renew the role of the call, also if the call does nothing else.
--- KEYS   held meta
--- NEEDS  role changes
if role ~= '' then
  redis.call('HDEL', held, '-')
  redis.call('HSET', meta, unpack(changes))
end
