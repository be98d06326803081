-- A job as a reader sees it, wherever it is; {} = gone.
local function described(id)
  local value = redis.call('HGET', held, id)
  if not value then
    local entry = redis.call('XRANGE', ready, id, id)[1]
    return entry and facts(id, 'ready', string.sub(id, 1, -12), entry[2][2]) or {}
  end
  local state, at = 'dangling', 0
  for name, index in pairs({active = active, scheduled = scheduled, once = once, dead = dead}) do
    local score = redis.call('ZSCORE', index, id)
    if score then
      state, at = name, (name == 'active' or name == 'once') and math.floor(score / 4096) or tonumber(score)
      if at <= now and name ~= 'dead' then
        state = name == 'once' and 'expired' or 'ready'
      end
    end
  end
  return facts(id, state, at, value)
end
