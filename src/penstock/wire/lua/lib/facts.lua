-- One job for a reader: number, state, score, delivered (ms, or 0), owner, counters, record.
local function facts(id, state, score, value)
  local at, who, record = '0', '', value
  if string.byte(value) == 64 then
    at, who, record = string.match(value, '^@(%d+) ([^\n]*)\n(.*)$')
  end
  local ends = redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    state = 'expired'
  end
  return {id, state, string.format('%.0f', score), at, who, redis.call('HGET', tally, id) or '', record}
end
