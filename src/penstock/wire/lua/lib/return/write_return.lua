-- write_return(returned, dying, cancelled, new_counters, marks) puts jobs back or buries them: returned = {number, due, ...}, dying =
-- {number, ...}, cancelled = {number, ...}, new_counters = {number, counters, ...}, marks = {field of tally, value, ...}. `due` is the
-- creation ms of a job that comes first again. It returns the earliest due time; nil = none was put back. HDEL comes first: it passes
-- on a full server. prepare_return has the checks.
--- KEYS   held active scheduled urgent dead tally expiry finished meta
--- NEEDS  uses change count_members drop_bodies follow_deaths forget has_urgent keep_results keyed notify_ended now
--- SETS   uses
--- GIVES  write_return
--@include lib/meta/use
--@include lib/add/priority_of
--@include lib/add/place_jobs (gives: place, write_places)
local function write_return(returned, dying, cancelled, new_counters, marks)
  local due = nil
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
  if #returned > 0 and uses_any('awaited') then
    --@include lib/return/notify_returned
    local ids = {}
    for i = 1, #returned, 2 do
      ids[#ids + 1] = returned[i]
    end
    notify_returned(ids)
  end
  if #dying > 0 then
    redis.call('HINCRBY', meta, 'died', #dying)
    notify_ended(dying)
    count_members(dying, 'dead')
    follow_deaths(dying)
    --@include lib/sweep/trim_dead
    trim_dead(100 + 2 * #dying)
  end
  return due
end
