-- job_fields(...) returns a job for a reader: number, state, score, delivered (ms, or 0), owner, counters, record.
-- with_body(job) adds a large body; a job whose body is gone is dangling.
--- NEEDS  held tally expiry now
--- GIVES  with_body job_fields
--@include lib/join_body
local function with_body(job)
  local record = join_body(job[1], job[7])
  if not record then
    job[2], record = 'dangling', '1' .. string.sub(job[7], 2)
  end
  job[7] = record
  return job
end
local function job_fields(id, state, score, value)
  local at, owner, record = '0', '', value
  if string.byte(value) == 64 then
    at, owner, record = string.match(value, '^@(%d+)%?? ([^\n]*)\n(.*)$')
  end
  local ends = redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    state = 'expired'
  end
  return {id, state, string.format('%.0f', score), at, owner, redis.call('HGET', tally, id) or '', record}
end
