-- Find the next event after a delivery of choose_ready (`wrote`), and add the wake token for other consumers, as next_event does: a
-- function would cost this short call 5 %. `reread`: the head of active has ended in this call. The queue has no rate and is open.
--- KEYS   ready held active scheduled meta wake
--- NEEDS  now alarm change changes end_of entries_left exhausted first head idle lease n now_ms reread since took wake_empty
---        wrote
--- SETS   alarm first head
--- GIVES  next_in
if since >= 1000 then
  change('seen', now_ms)
end
local soonest = took > 0 and not reread and now + lease
if reread then
  head, first = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES'), redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')
end
local first_end, first_due = head[2] and end_of(head[2]), tonumber(first[2])
local more = first_end and first_end <= now or first_due and first_due <= now
  or not (exhausted and entries_left == 0) and redis.call('XLEN', ready) > 0
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
