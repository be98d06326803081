-- Put jobs back or bury them. back = {number, score, number, score ...}, fallen = {number, ...}, recount = {number,
-- counters ...}; a score is the due time, or the job's own creation ms when it is to come at once and first.
-- HDEL first, it passes on a full server. lib/placing has made the checks.
--- NEEDS  held active scheduled dead tally expiry meta wake back fallen uses now recount write_dedup paused changes
---        asleep wake_drained alarm change drop_bodies
--- SETS   uses alarm
--@include lib/trim_dead
--@include lib/use
local token, due = false, nil
if #back + #fallen > 0 then
  redis.call('HDEL', held, '-')
  for i = 1, #back, 2 do
    local id, at = back[i], back[i + 1]
    if string.find(uses, 't', 1, true) then
      at = math.min(at, tonumber(redis.call('ZSCORE', expiry, id)) or at)
    end
    redis.call('ZREM', active, id)
    redis.call('ZADD', scheduled, at, id)
    due = math.min(due or at, at)
  end
  for i = 1, #fallen do
    redis.call('ZREM', active, fallen[i])
    redis.call('ZREM', expiry, fallen[i])
    redis.call('ZADD', dead, now, fallen[i])
  end
  if #recount > 0 then
    redis.call('HSET', tally, unpack(recount))
    use('r')
  end
  if #fallen > 0 then
    redis.call('HINCRBY', meta, 'died', #fallen)
    trim_dead(100 + 2 * #fallen)
  end
  local successor_due = write_dedup()
  if successor_due and (not due or successor_due < due) then
    due = successor_due
  end
  --@include lib/announce
  if due and not paused then
    token = due <= now or announce(due, false)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and asleep then
    redis.call('RPUSH', wake, '1')
  end
  wake_drained()
end
