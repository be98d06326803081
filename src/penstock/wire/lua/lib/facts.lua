-- One job for a reader: number, state, score, delivered (ms, or 0), owner, counters, record. filled(job) reads a body that lies
-- apart into it; a job whose body is gone is dangling.
--- NEEDS  held tally expiry now
--- GIVES  filled facts
--@include lib/joined
local function filled(job)
  local record = joined(job[1], job[7])
  if not record then
    job[2], record = 'dangling', '1' .. string.sub(job[7], 2)
  end
  job[7] = record
  return job
end
local function facts(id, state, score, value)
  local at, who, record = '0', '', value
  if string.byte(value) == 64 then
    at, who, record = string.match(value, '^@(%d+)%?? ([^\n]*)\n(.*)$')
  end
  local ends = redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    state = 'expired'
  end
  return {id, state, string.format('%.0f', score), at, who, redis.call('HGET', tally, id) or '', record}
end
