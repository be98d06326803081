-- One more crash of a job: the counters behind it, and whether it dies of it. Needs max_attempts and max_crashes, the job's
-- record and its value in held, which says who had it. The number of a delivery that is not made is set aside: the holder that
-- never spoke is stale from now on. A number that is set aside already is that of this delivery. Third, how many crashes this was:
-- none if the delivery was provisional.
--- NEEDS  uses limit max_attempts max_crashes
--- GIVES  crash
--@include lib/policy
local ruled = string.find(uses, 'p', 1, true)
local function crash(count, record, value)
  local d, aside, nacked, c, r, why = string.match(count or '1 0 0 0', '^(%d+)(%+?) (%d+) (%d+) (%d+)(.*)$')
  d = aside == '' and d + 1 or d
  if string.find(value, '^@%d+%?') then
    return d .. ' ' .. nacked .. ' ' .. c .. ' ' .. r + 1 .. why, false, 0
  end
  c = c + 1
  local most = ruled and limit(policy(record, 1), max_attempts) or max_attempts
  local dies = c >= max_crashes or nacked + c >= most
  if dies then
    local since, owner = string.match(value, '^@(%d+) ([^\n]*)\n')
    why = c >= max_crashes and ' lease ended ' .. c .. ' times' or ' ' .. nacked + c .. ' attempts'
    why = since and string.sub(why .. ', last held by ' .. owner .. ' since ' .. since, 1, 1025) or why
  end
  return d .. (dies and '+ ' or ' ') .. nacked .. ' ' .. c .. ' ' .. r .. why, dies, 1
end
