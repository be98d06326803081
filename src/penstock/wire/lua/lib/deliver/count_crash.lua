-- count_crash(count, record, value, max_attempts, max_crashes) counts a lease that has ended. It returns the new counters, whether the job dies,
-- and the number of crashes: 0 if the delivery was provisional. `value` in held names the last owner. If the job
-- dies, no delivery follows: the next number is set aside, so the last holder's receipt is stale.
--- NEEDS  uses limit_of
--- GIVES  count_crash
--@include lib/deliver/policy
local has_policies = uses_any('policies')
local function count_crash(count, record, value, max_attempts, max_crashes)
  local d, reserved, nacked, c, r, why = string.match(count or '1 0 0 0', '^(%d+)(%+?) (%d+) (%d+) (%d+)(.*)$')
  d = reserved == '' and d + 1 or d
  if string.find(value, '^@%d+%?') then
    return d .. ' ' .. nacked .. ' ' .. c .. ' ' .. r + 1 .. why, false, 0
  end
  c = c + 1
  local most = has_policies and limit_of(policy(record, 1), max_attempts) or max_attempts
  local dies = c >= max_crashes or nacked + c >= most
  if dies then
    local since, owner = string.match(value, '^@(%d+) ([^\n]*)\n')
    why = c >= max_crashes and ' lease ended ' .. c .. ' times' or ' ' .. nacked + c .. ' attempts'
    why = since and string.sub(why .. ', last held by ' .. owner .. ' since ' .. since, 1, 1025) or why
  end
  return d .. (dies and '+ ' or ' ') .. nacked .. ' ' .. c .. ' ' .. r .. why, dies, 1
end
