-- Find the next event after a delivery, and add the wake token for other consumers. `more`: more jobs can be reserved
-- now; `soonest`: time of the next event; `drained`: no job can come; `idle`: the caller waited, and was told of the event.
--- NEEDS  spend ready held active scheduled meta wake delivers reread paused head first soonest end_of more now exhausted
---        entries_left successor_due alarm idle took n change is_drained wrote changes wake_empty
--- SETS   head first soonest more alarm
--- GIVES  next_in
if delivers then
  if reread then
    if paused ~= 'in' then
      head = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES')
      first = redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')
    else -- only jobs with a priority that are ready
      first = redis.call('ZRANGE', scheduled, '-inf', '(0', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
    end
    soonest = false
  end
  local a, s = head[2] and end_of(head[2]), tonumber(first[2])
  more = a and a <= now or s and s <= now or not (exhausted and entries_left == 0) and redis.call('XLEN', ready) > 0
  if a and not (soonest and soonest <= a) then
    soonest = a
  end
  if s and s < 9007199254740991 and not (soonest and soonest <= s) then -- not a successor: it has no due time yet
    soonest = s
  end
end
--@include lib/deliver/announce
local token = more
if successor_due and delivers then
  more = more or successor_due <= now
  token = more or announce(successor_due, false)
end
if delivers and spend then
  local allowed_at = spend(took)
  if allowed_at then -- nothing is delivered before: the rate of the queue
    soonest = more and allowed_at or soonest and math.max(soonest, allowed_at)
    more, token = false, false
  end
end
if not more and alarm > now and (idle or took == 0) and not (soonest and soonest <= alarm) then
  -- The event of the alarm is gone. A caller that goes on waiting keeps a timer for the next one.
  alarm = idle and n > 0 and took == 0 and soonest and soonest - now <= 4000 and soonest or 0
  change('alarm', alarm)
end
if not more and soonest and (took > 0 or n == 0) then
  token = announce(soonest, idle) or token
end
local drained = is_drained()
if drained then -- each waiting consumer wakes the next one
  token = true
end
if not wrote and (#changes > 0 or token and wake_empty) then
  redis.call('HDEL', held, '-')
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
if token and wake_empty then
  redis.call('RPUSH', wake, '1')
end
local next_in = drained and -2 or more and 0 or soonest and soonest - now or -1
