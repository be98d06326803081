-- state_of(id) returns the state of a held job, its time there (due, end of the lease or of the ttl, death; of a parked job its creation, see
-- tell_wait), and the score of a delivery that has not ended. It looks at every index.
--- KEYS   active scheduled once dead parked
--- NEEDS  end_of now
--- GIVES  state_of
local function state_of(id)
  local state, at, lasting = 'dangling', 0, nil
  for name, index in pairs({active = active, scheduled = scheduled, once = once, dead = dead}) do
    local score = redis.call('ZSCORE', index, id)
    if score then
      lasting = (name == 'active' or name == 'once') and score
      state, at = name, lasting and end_of(score) or tonumber(score)
      if at <= now and name ~= 'dead' then
        state = name == 'once' and 'expired' or 'ready'
      end
    end
  end
  if state == 'dangling' and redis.call('ZSCORE', parked, id) then
    state, at = 'parked', tonumber(string.sub(id, 1, -12))
  end
  return state, at, lasting
end
