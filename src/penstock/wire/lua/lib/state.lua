-- Where a held job is, and its time there: due, end of the lease or of the ttl, death. Every index is looked at.
local function state_of(id)
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
  return state, at
end
