-- read_kept(id) returns the kept result of a job that has ended: state, time, attempt, duration, flags, value; nil =
-- none is kept, or its time is over.
--- NEEDS  held now
--- GIVES  read_kept
local function read_kept(id)
  local result = redis.call('HGET', held, '>' .. id) or ''
  local state, at, span, attempt, duration, flags, value = string.match(result, '^(%a+) (%d+) (%d+) (%d+) (%d+) ?([^\n]*)\n(.*)$')
  if state and at + span > now then
    return {state, at, attempt, duration, flags, value}
  end
end
