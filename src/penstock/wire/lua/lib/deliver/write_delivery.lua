-- Write the delivery that choose_jobs and prepare_delivery computed. HDEL comes first: it passes on a
-- full server, and checks the type of held.
--- NEEDS  ready held active scheduled urgent has_urgent once dead tally expiry meta taken due expired
---        dropped dying cut held_pairs active_pairs once_pairs now new_counters crashes sweep_limit remove_expired
---        write_dedup drop_bodies cancelled forget marks keep_results notify_ended kept_pairs put_back count_members
--- GIVES  wrote successor_due
local wrote = false
if #taken + #due + #expired.ids + #expired.once + #dropped + #dying + #cancelled + #put_back > 0 or cut then
  local call = redis.call
  call('HDEL', held, '-')
  wrote = true
  if #held_pairs > 0 then
    call('HSET', held, unpack(held_pairs))
  end
  if #kept_pairs > 0 then
    call('HSET', held, unpack(kept_pairs))
  end
  for i = 1, #put_back, 2 do
    call('ZREM', active, put_back[i])
  end
  if #active_pairs > 0 then
    --@include lib/deliver/add_active
  end
  if #once_pairs > 0 then
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
  local died = {}
  for i = 1, #dying, 2 do
    died[#died + 1] = dying[i]
    call('ZREM', active, dying[i])
    call('ZREM', expiry, dying[i])
    call('ZADD', dead, now, dying[i])
    new_counters[#new_counters + 1] = dying[i]
    new_counters[#new_counters + 1] = dying[i + 1]
  end
  --@include lib/add/write_in_parts
  write_in_parts(new_counters, function(...) call('HSET', tally, ...) end)
  write_in_parts(marks, function(...) call('HSET', tally, ...) end)
  if #cancelled > 0 then
    --@include lib/return/end_cancelled
    end_cancelled(cancelled)
  end
  if crashes > 0 then
    call('HINCRBY', meta, 'crashed', crashes)
  end
  if #dying > 0 then
    call('HINCRBY', meta, 'died', #died)
    notify_ended(died)
    count_members(died, 'dead')
    --@include lib/sweep/trim_dead
    trim_dead(sweep_limit)
  end
  remove_expired(expired)
  if cut then
    --@include lib/deliver/trim_ready
  end
end
local successor_due = write_dedup()
