-- write_delivery(delivery, expired, limit) writes what choose_jobs and prepare_delivery have computed, and removes the expired jobs, and
-- at most `limit` dead letters above their bounds. It returns whether it has begun to write (an HDEL, which comes first: it passes on a
-- full server, and checks the type of held), and when a successor is due (see write_ends, which may write in either case).
--- KEYS   ready held active scheduled urgent once dead tally expiry meta
--- NEEDS  count_members follow_deaths forget has_urgent notify_ended now remove_expired write_ends drop_bodies keep_results
--- GIVES  write_delivery
local function write_delivery(delivery, expired, limit)
  local ids, due, dropped, ended, once_pairs = delivery.ids, delivery.due, delivery.dropped, delivery.ended, delivery.once_pairs
  local held_pairs, kept_pairs, active_pairs, new_counters = delivery.held_pairs, delivery.kept_pairs, delivery.active_pairs, delivery.new_counters
  if #ids + #due + #expired.ids + #expired.once + #dropped == 0 and not delivery.cut and not ended then
    return false, write_ends()
  end
  local call = redis.call
  call('HDEL', held, '-')
  if #held_pairs > 0 then
    call('HSET', held, unpack(held_pairs))
  end
  if #kept_pairs > 0 then
    call('HSET', held, unpack(kept_pairs))
  end
  for i = 1, ended and #ended.to_park or 0, 2 do -- before new deliveries: after a damaged restore a job may be one of both
    call('ZREM', active, ended.to_park[i])
  end
  if #active_pairs > 0 then
    --@include lib/deliver/add_active
    add_active(active_pairs)
  end
  if once_pairs then
    call('ZADD', once, unpack(once_pairs))
    for i = 2, #once_pairs, 2 do
      call('ZREM', expiry, once_pairs[i])
    end
  end
  if #due > 0 then
    call('ZREM', scheduled, unpack(due))
    if has_urgent then
      call('ZREM', urgent, unpack(due))
    end
  end
  if #dropped > 0 then -- an index entry whose record is gone: evicted, or a damaged restore
    call('HDEL', held, unpack(dropped))
    call('ZREM', active, unpack(dropped))
    forget(dropped)
    call('ZREM', expiry, unpack(dropped))
    call('HINCRBY', meta, 'dangling', #dropped)
    notify_ended(dropped)
    count_members(dropped, 'failed')
  end
  if ended then
    --@include lib/deliver/write_ended
    write_ended(ended, new_counters, limit)
  elseif #new_counters > 0 then
    call('HSET', tally, unpack(new_counters))
  end
  remove_expired(expired)
  if delivery.cut then
    --@include lib/read/number_after
    call('XTRIM', ready, 'MINID', number_after(delivery.cut))
  end
  return true, write_ends()
end
