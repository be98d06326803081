-- next_event(delivery, took, n, idle, wrote, successor_due) finds the next event after a delivery of `took` of n jobs, and adds the wake
-- token for other consumers. It returns -1 = nothing is due, 0 = more jobs can be reserved now, -2 = closed and drained: no job can
-- come, else the ms until the event. `idle`: the caller waited, and was told of the event; wrote and successor_due: see write_delivery.
-- While max_active has no slot, jobs that wait are no event: only the end of a lease, or of a ttl in once.
--- KEYS   ready held active scheduled once meta wake parked turns holds
--- NEEDS  alarm change changes end_of free_slots is_drained keyed now paused score_of spend wake_after_ends wake_empty
--- SETS   alarm
--- GIVES  next_event
local function next_event(delivery, took, n, idle, wrote, successor_due)
  local delivers, more, soonest = paused ~= 'out' and paused ~= 'all', false, delivery.soonest
  local first_end, first_due = delivery.first_end, delivery.first_due
  local has_slot, is_limited = (free_slots() or 1) > 0, false
  if delivers then
    if delivery.is_changed then
      if paused ~= 'in' then
        first_end = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES')[2]
        first_end = first_end and end_of(first_end)
        first_due = tonumber(redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')[2])
      else -- only jobs with a priority that are ready
        first_due = tonumber(redis.call('ZRANGE', scheduled, '-inf', '(0', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2])
      end
      soonest = nil
    end
    more = first_end and first_end <= now
      or has_slot and (first_due and first_due <= now or not delivery.has_read_all and redis.call('XLEN', ready) > 0)
    if not has_slot then
      local low = '(' .. string.format('%.0f', score_of(now, 4095))
      local once_end = redis.call('ZRANGE', once, low, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
      first_due = once_end and end_of(once_end)
    end
    if first_end and not (soonest and soonest <= first_end) then
      soonest = first_end
    end
    local first_turn = has_slot and keyed and keyed.has_turns and not paused and redis.call('ZRANGE', turns, '0', '0', 'WITHSCORES')[2]
    if first_turn then
      first_turn = keyed.pace and math.min(tonumber(first_turn), keyed.pace.latest) or now
      more, soonest = more or first_turn <= now, math.min(soonest or first_turn, first_turn)
    end
    local first_hold = has_slot and keyed and keyed.has_holds and not paused and redis.call('ZCARD', parked) > 0
      and tonumber(redis.call('ZRANGE', holds, '0', '0', 'WITHSCORES')[2])
    if first_hold then -- jobs may be parked until its end
      more, soonest = more or first_hold <= now, math.min(soonest or first_hold, first_hold)
    end
    if first_due and first_due < 9007199254740991 and not (soonest and soonest <= first_due) then -- not a successor: it has no due time yet
      soonest = first_due
    end
  end
  --@include lib/deliver/announce
  local token = more
  if successor_due and delivers and has_slot then
    more = more or successor_due <= now
    token = more or announce(successor_due, false)
  end
  if delivers and spend then
    local allowed_at = spend(took)
    is_limited = allowed_at ~= nil
    if allowed_at then -- nothing is delivered before: the rate of the queue
      soonest = more and allowed_at or soonest and math.max(soonest, allowed_at)
      more, token = false, false
    end
  end
  if not more and (idle or took == 0) and not (soonest and soonest <= alarm) then
    -- A caller that goes on waiting keeps a timer for the next event. Jobs that come before the rate allows one need not wake another caller.
    local noted = idle and n > 0 and took == 0 and soonest and soonest - now <= 4000 and soonest or 0
    if alarm > now or is_limited and noted > 0 then -- the event of the alarm is gone, or past
      alarm = noted
      change('alarm', alarm)
    end
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
  wake_after_ends()
  return drained and -2 or more and 0 or soonest and soonest - now or -1
end
