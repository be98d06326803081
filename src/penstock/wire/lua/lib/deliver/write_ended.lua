-- write_ended(ended, new_counters, limit) writes what choose_ended has found about jobs that are not delivered, and all new counters. It
-- removes at most so many dead letters above their bounds.
--- KEYS   held active dead tally expiry meta
--- NEEDS  now count_members drop_bodies follow_deaths forget keep_results notify_ended
--- GIVES  write_ended
local function write_ended(ended, new_counters, limit)
  local call, died, dying = redis.call, {}, ended.dying
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
  write_in_parts(ended.marks, function(...) call('HSET', tally, ...) end)
  if #ended.cancelled > 0 then
    --@include lib/return/end_cancelled
    end_cancelled(ended.cancelled)
  end
  if ended.crashes > 0 then
    call('HINCRBY', meta, 'crashed', ended.crashes)
  end
  if #died > 0 then
    call('HINCRBY', meta, 'died', #died)
    notify_ended(died)
    count_members(died, 'dead')
    follow_deaths(died)
    --@include lib/sweep/trim_dead
    trim_dead(limit)
  end
end
