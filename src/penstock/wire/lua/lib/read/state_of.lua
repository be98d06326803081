-- state_of(id) returns the state of a held job, its time there (due, end of the lease or of the ttl, death; of a parked job its creation, or from
-- when the rate or a hold of its key allows the next job), and the score of a delivery that has not ended. It looks at every index.
--- KEYS   active scheduled once dead parked turns holds
--- NEEDS  end_of now uses
--- GIVES  hold_end state_of
--@include lib/keyed/hold_end
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
  local hash = state == 'dangling' and redis.call('ZSCORE', parked, id)
  if hash then
    hash = string.format('%.0f', hash)
    local turn = math.max(redis.call('ZSCORE', turns, hash) or 0, hold_end(hash) or 0)
    state, at = 'parked', turn > now and turn or tonumber(string.sub(id, 1, -12))
  end
  return state, at, lasting
end
