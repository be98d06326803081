-- Put jobs back or bury them: returned = {number, due, ...}, dying = {number, ...}, cancelled = {number, ...}, new_counters =
-- {number, counters, ...}, marks = {field of tally, value, ...}. `due` is the creation ms of a job that comes first again.
-- HDEL comes first: it passes on a full server. prepare_return has the checks.
--- KEYS   held active scheduled urgent dead tally expiry meta wake
--- NEEDS  has_urgent returned dying uses now new_counters write_dedup paused changes wake_empty wake_drained alarm change
---        drop_bodies cancelled forget marks keep_results notify_ended keyed count_members
--- SETS   uses alarm
--@include lib/meta/use
--@include lib/add/priority_of
--@include lib/add/place_jobs (gives: place, write_places)
local token, due = false, nil
if #returned + #dying + #cancelled > 0 then
  redis.call('HDEL', held, '-')
  if #cancelled > 0 then
    --@include lib/return/end_cancelled
    end_cancelled(cancelled)
  end
  local later = {}
  for i = 1, #returned, 2 do
    local id, at = returned[i], returned[i + 1]
    if uses_any('ttls') then
      at = math.min(at, tonumber(redis.call('ZSCORE', expiry, id)) or at)
    end
    redis.call('ZREM', active, id)
    place(id, at, has_urgent and priority_of(redis.call('HGET', held, id) or '') or 0)
    due = math.min(due or at, at)
    if at > now then
      later[#later + 1] = id
    end
  end
  if keyed then
    keyed.postpone(later)
  end
  write_places()
  for i = 1, #dying do
    redis.call('ZREM', active, dying[i])
    redis.call('ZREM', expiry, dying[i])
    redis.call('ZADD', dead, now, dying[i])
  end
  if #new_counters > 0 then
    redis.call('HSET', tally, unpack(new_counters))
    use('counters')
  end
  if #marks > 0 then
    redis.call('HSET', tally, unpack(marks))
    use('marks')
  end
  if #dying > 0 then
    redis.call('HINCRBY', meta, 'died', #dying)
    notify_ended(dying)
    count_members(dying, 'dead')
    --@include lib/sweep/trim_dead
    trim_dead(100 + 2 * #dying)
  end
  local successor_due = write_dedup()
  if successor_due and (not due or successor_due < due) then
    due = successor_due
  end
  --@include lib/deliver/announce
  if due and not paused then
    token = due <= now or announce(due, false)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  wake_drained()
end
