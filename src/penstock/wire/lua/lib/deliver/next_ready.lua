-- The same as next_event, for the fast lane: without rate, pause, close and successors, which it never sees, and no function, as that
-- would cost its short call 5 %. `wrote`: the call has written to held.
--- KEYS   ready held meta wake
--- NEEDS  now alarm change changes first_due first_end has_read_all idle lease n took wake_empty wrote
--- SETS   alarm
--- GIVES  next_in
local soonest = took > 0 and now + lease
local more = first_end and first_end <= now or first_due and first_due <= now or not has_read_all and redis.call('XLEN', ready) > 0
if first_end and not (soonest and soonest <= first_end) then
  soonest = first_end
end
if first_due and first_due < 9007199254740991 and not (soonest and soonest <= first_due) then -- not a successor: it has no due time yet
  soonest = first_due
end
--@include lib/deliver/announce
local token = more
if not more and alarm > now and (idle or took == 0) and not (soonest and soonest <= alarm) then
  -- The event of the alarm is gone. A caller that goes on waiting keeps a timer for the next one.
  alarm = idle and n > 0 and took == 0 and soonest and soonest - now <= 4000 and soonest or 0
  change('alarm', alarm)
end
if not more and soonest and (took > 0 or n == 0) then
  token = announce(soonest, idle)
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
local next_in = more and 0 or soonest and soonest - now or -1
