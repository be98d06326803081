-- Put jobs back or bury them. back = {number, score, number, score ...}, fallen = {number, ...}, recount = {number,
-- counters ...}; a score is the due time, or the job's own creation ms when it is to come at once and first.
-- HDEL first, it passes on a full server. lib/placing has made the checks.
--- NEEDS  ready held active scheduled dead tally expiry meta wake dedup windows back fallen uses now recount changes
---        paused alarm asleep bequeath drop_bodies heirs known loose open touched untold
--- SETS   alarm
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
    if not string.find(uses, 'r', 1, true) then
      changes[#changes + 1] = 'uses'
      changes[#changes + 1] = uses .. 'r'
    end
  end
  if #fallen > 0 then
    redis.call('HINCRBY', meta, 'died', #fallen)
    local reach = 100 + 2 * #fallen
    --@include lib/trim
  end
  --@include lib/bequests
  if heir_token and (not due or heir_token < due) then
    due = heir_token
  end
  --@include lib/announce
  if due and not paused then
    token = due <= now or announce(due, false)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  --@include lib/wake
  --@include lib/drained
end
