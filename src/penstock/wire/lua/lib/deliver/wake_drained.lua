-- wake_drained() wakes a consumer if the queue is closed and drained, so that no job can come any more. That consumer wakes
-- the next one (protocol/roles.md, Closing a queue). Checks the types of the keys that is_drained() reads.
--- KEYS   ready active scheduled wake parked
--- NEEDS  nothing uses
--- GIVES  is_drained wake_drained
local is_drained, wake_drained = nothing, nothing
if uses_any('closed') then
  redis.call('XLEN', ready)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', active)
  redis.call('ZCARD', parked)
  redis.call('LLEN', wake)
  is_drained = function()
    return redis.call('XLEN', ready) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', active) + redis.call('ZCARD', parked) == 0
  end
  wake_drained = function()
    if is_drained() and redis.call('LLEN', wake) == 0 then
      redis.call('RPUSH', wake, '1')
    end
  end
end
