-- At most one token: something to reserve, or an event that an idle consumer should know of.
--- NEEDS  wake token asleep
if token and asleep then
  redis.call('RPUSH', wake, '1')
end
