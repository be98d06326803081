-- A closed queue from which nothing can come any more: one who waits for a job is told, and tells the next.
-- (protocol/roles.md, Closing a queue)
--- NEEDS  ready active scheduled wake untold
if untold and redis.call('XLEN', ready) == 0 and redis.call('ZCARD', scheduled) == 0 and redis.call('ZCARD', active) == 0 then
  redis.call('RPUSH', wake, '1')
end
