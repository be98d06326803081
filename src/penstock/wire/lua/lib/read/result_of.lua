-- result_of(id) returns how a job stands for a client that waits for its end: {} gone, else {state, at, attempt, duration, flags, value} as
-- in the reply of results; state 'waiting' = it has not ended.
--- KEYS   ready held once dead tally scheduled expiry batches
--- NEEDS  end_of now uses
--- GIVES  result_of
--@include lib/read/read_kept
--@include lib/read/lapsed (gives: abandoned_error)
local function attempt_of(id) -- as states_to_keep counts
  if string.byte(redis.call('HGET', held, id) or '') ~= 64 then
    return '0'
  end
  local nacks, crashes = string.match(redis.call('HGET', tally, id) or '', '^%S+ (%d+) (%d+)')
  return string.format('%d', 1 + (nacks or 0) + (crashes or 0))
end
local function result_of(id)
  local died = redis.call('ZSCORE', dead, id)
  if died then
    local nacks, crashes, why = string.match(redis.call('HGET', tally, id) or '', '^%S+ (%d+) (%d+) %d+ ?(.*)$')
    return {'dead', died, string.format('%d', (nacks or 0) + (crashes or 0)), '0', '', why or ''}
  elseif redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1 then
    local state, ended = lapsed(id, redis.call('ZSCORE', once, id))
    if state == 'dead' then
      return {state, string.format('%.0f', ended), '0', '0', '', abandoned_error}
    elseif state then
      return {state, string.format('%.0f', ended), attempt_of(id), '0', '', ''}
    end
    return {'waiting', '0', '0', '0', '', ''}
  end
  return read_kept(id) or {}
end
