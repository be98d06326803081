-- A job as a reader sees it, wherever it is; {} = gone.
--@include lib/facts
--@include lib/state
local function described(id)
  local value = redis.call('HGET', held, id)
  if value then
    local state, at = state_of(id)
    return facts(id, state, at, value)
  end
  local entry = redis.call('XRANGE', ready, id, id)[1]
  return entry and facts(id, 'ready', string.sub(id, 1, -12), entry[2][2]) or {}
end
