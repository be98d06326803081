-- Hand the wake token on: a refused caller may have taken it in its wait.
--- KEYS   held wake
--- NEEDS  epoch idle
if epoch and idle == '1' and redis.call('LLEN', wake) == 0 then
  redis.call('HDEL', held, '-')
  redis.call('RPUSH', wake, '1')
end
