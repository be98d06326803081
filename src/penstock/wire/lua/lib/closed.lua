-- Of a closed queue: the types of what tells whether it has drained, and whether somebody is to be told when it has.
--- NEEDS  ready active scheduled wake uses
--- GIVES  closed untold
local closed, untold = uses ~= '' and string.find(uses, 'c', 1, true), false
if closed then
  redis.call('XLEN', ready)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', active)
  untold = redis.call('LLEN', wake) == 0
end
