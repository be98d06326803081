-- A call that bears a role renews it, also if it does nothing else.
--- NEEDS  held meta role changes
if role ~= '' then
  redis.call('HDEL', held, '-')
  redis.call('HSET', meta, unpack(changes))
end
