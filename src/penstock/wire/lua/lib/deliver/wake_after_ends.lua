-- wake_after_ends() follows the ends of jobs and deliveries, behind the last write. It wakes a consumer
--   if the queue is closed and drained, so that no job can come any more. That consumer wakes the next one (protocol/roles.md, Closing a queue);
--   if max_active was reached before, a slot is free now, and a job waits, or will be due within 4 s: while the queue was full, no due job
--   was an event (protocol/rate.md, Slots).
-- It checks the types of the keys that these functions read.
--- KEYS   ready active scheduled once meta wake parked turns holds
--- NEEDS  now nothing paused score_of uses
--- GIVES  free_slots is_drained wake_after_ends
local is_drained, wake_after_ends = nothing, nothing
--@include lib/deliver/slots (gives: free_slots)
if uses_any('closed max_active') then
  redis.call('XLEN', ready)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', active)
  redis.call('ZCARD', parked)
  redis.call('ZCARD', turns)
  redis.call('LLEN', wake)
  local was_full = (free_slots() or 1) <= 0
  is_drained = uses_any('closed') and function()
    return redis.call('XLEN', ready) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', active) + redis.call('ZCARD', parked) == 0
  end or nothing
  local function has_job_soon()
    local due, turn = redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')[2], redis.call('ZRANGE', turns, '0', '0', 'WITHSCORES')[2]
    local hold_end = uses_any('key_holds') and redis.call('ZRANGE', holds, '0', '0', 'WITHSCORES')[2]
    return redis.call('XLEN', ready) > 0 or math.min(due or math.huge, turn or math.huge, hold_end or math.huge) <= now + 4000
  end
  wake_after_ends = function()
    local has_slot = was_full and paused ~= 'out' and paused ~= 'all' and free_slots() > 0
    if (is_drained() or has_slot and has_job_soon()) and redis.call('LLEN', wake) == 0 then
      redis.call('RPUSH', wake, '1')
    end
  end
end
