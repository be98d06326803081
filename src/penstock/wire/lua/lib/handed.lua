-- Refused, and it came from a wait: the token that it may have taken is for others.
--- NEEDS  held wake epoch idle
if epoch and idle == '1' and redis.call('LLEN', wake) == 0 then
  redis.call('HDEL', held, '-')
  redis.call('RPUSH', wake, '1')
end
