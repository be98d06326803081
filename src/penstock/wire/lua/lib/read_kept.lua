-- read_kept(id) returns the kept result of a job that has ended: state, time, attempt, duration, flags, value; nil =
-- none is kept, or its time is over.
--- NEEDS  held expiry now
--- GIVES  read_kept
local function read_kept(id)
  local name = '>' .. id
  local ends = redis.call('ZSCORE', expiry, name)
  if not ends or tonumber(ends) <= 2251799813685248 + now then
    return nil
  end
  local state, at, attempt, duration, flags, value =
    string.match(redis.call('HGET', held, name) or '', '^(%a+) (%d+) (%d+) (%d+) ?([^\n]*)\n(.*)$')
  return state and {state, at, attempt, duration, flags, value}
end
