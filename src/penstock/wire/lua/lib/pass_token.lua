-- A refused caller that has waited may have taken the wake token: pass it on.
--- NEEDS  held wake epoch idle
if epoch and idle == '1' and redis.call('LLEN', wake) == 0 then
  redis.call('HDEL', held, '-')
  redis.call('RPUSH', wake, '1')
end
