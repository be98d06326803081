-- Look at 100 tickets and 100 parked jobs, from where the last sweep stopped (`walked` in meta): drop the tickets of jobs that
-- are gone, drop parked jobs without a record, and admit jobs of keys that have room. Where no job waits for a later try with its
-- ticket, one that is due more than 30 days ahead was admitted at a wrong time: it is due now. So is a turn of a key that is ahead; with a rate
-- for each key, up to 100 times of turns and of paces that are too far ahead become the latest possible, and up to 1,000 past ones of paces are
-- dropped. `paces_dropped`: how many. Up to 1,000 holds of keys that have ended are dropped.
--- KEYS   ready held scheduled dead expiry meta parked tickets turns paces
--- NEEDS  keyed forget now
--- GIVES  paces_dropped
local paces_dropped = 0
if keyed then
  local walked = redis.call('HGET', meta, 'walked') or '0 0'
  local at, behind = string.match(walked, '^(%d+) (%d+)$')
  local page, jobs = redis.call('ZRANGE', tickets, at, at + 99), redis.call('ZRANGE', parked, behind, behind + 99, 'WITHSCORES')
  local due = #page > 0 and not keyed.is_ordered and redis.call('ZMSCORE', scheduled, unpack(page)) or {}
  local lost, dropped, late = {}, {}, {}
  for i = 1, #page do
    local id = page[i]
    if (tonumber(due[i]) or 0) > now + 2592000000 and tonumber(due[i]) < 9007199254740991 then
      late[#late + 1], late[#late + 2] = now, id
    end
    local is_held = redis.call('HEXISTS', held, id) == 1
    if is_held and (redis.call('ZSCORE', dead, id) or redis.call('ZSCORE', parked, id)) or not is_held and #redis.call('XRANGE', ready, id, id) == 0 then
      lost[#lost + 1] = id
    end
  end
  for i = 1, #jobs, 2 do
    if redis.call('HEXISTS', held, jobs[i]) == 1 then
      keyed.look_at(jobs[i + 1], 1)
    else
      dropped[#dropped + 1] = jobs[i]
    end
  end
  if #lost > 0 then
    redis.call('ZREM', tickets, unpack(lost))
  end
  if #late > 0 then
    redis.call('ZADD', scheduled, unpack(late))
  end
  keyed.end_holds(1000)
  local pace = keyed.pace
  local function cap(index, latest)
    local bound, capped = string.format('%.0f', latest), {}
    local ahead = redis.call('ZRANGE', index, '(' .. bound, '+inf', 'BYSCORE', 'LIMIT', '0', '100')
    for i = 1, #ahead do
      capped[#capped + 1], capped[#capped + 2] = bound, ahead[i]
    end
    if #ahead > 0 then
      redis.call('ZADD', index, unpack(capped))
    end
  end
  if keyed.has_turns then
    cap(turns, pace and pace.latest or now)
  end
  if pace then
    cap(paces, pace.longest)
    paces_dropped = pace.write(1000)
  end
  if #dropped > 0 then
    keyed.unpark(dropped)
    redis.call('ZREM', expiry, unpack(dropped))
    forget(dropped)
    redis.call('HINCRBY', meta, 'dangling', #dropped)
  end
  local place = (#page < 100 and 0 or at + 100) .. ' ' .. (#jobs < 200 and 0 or behind + 100)
  if place ~= walked then
    redis.call('HSET', meta, 'walked', place)
  end
end
