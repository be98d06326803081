-- Write what lib/claims found out, behind the removals; `heir_token` = when a job that waited for another one's end is due.
--- NEEDS  scheduled expiry dedup windows bequeath loose touched known heirs open
--- GIVES  heir_token
local heir_token = nil
if bequeath then
  local freed, passed = loose, {}
  for i = 1, #touched do
    local name = touched[i]
    local value = known[name]
    if value == '' then
      freed[#freed + 1] = name
    elseif value then
      passed[#passed + 1] = name
      passed[#passed + 1] = value
    end
  end
  for i = 1, #freed, 4000 do -- unpack has a limit near 8000
    redis.call('HDEL', dedup, unpack(freed, i, math.min(i + 3999, #freed)))
  end
  for i = 1, #passed, 4000 do
    redis.call('HSET', dedup, unpack(passed, i, math.min(i + 3999, #passed)))
  end
  for i = 1, #heirs, 2 do
    if redis.call('ZSCORE', scheduled, heirs[i]) then -- it may have ended in this very call
      local at = math.min(heirs[i + 1], tonumber(redis.call('ZSCORE', expiry, heirs[i])) or heirs[i + 1])
      redis.call('ZADD', scheduled, at, heirs[i])
      heir_token = math.min(heir_token or at, at)
    end
  end
  if #open > 0 then
    redis.call('ZADD', windows, unpack(open))
  end
end
