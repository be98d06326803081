-- One more crash of a job: the counters behind it, and whether it dies of it. Needs max_attempts and max_crashes. The number
-- of a delivery that is not made is set aside: the holder that never spoke is stale from now on.
local function crash(count)
  local d, nacked, c, r, why = string.match(count or '1 0 0 0', '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  c = c + 1
  local dies = c >= max_crashes or nacked + c >= max_attempts
  if dies then
    why = c >= max_crashes and ' lease ended ' .. c .. ' times' or ' ' .. nacked + c .. ' attempts'
  end
  return d + 1 .. (dies and '+ ' or ' ') .. nacked .. ' ' .. c .. ' ' .. r .. why, dies
end
