-- job_fields(...) returns a job for a reader: number, state, score, delivered (ms, or 0), owner, counters, record, and
-- its marks: cancelled, progress, snoozes, failures ('' = none; the last one only if with_failures is true).
-- with_body(job) adds a large body; a job whose body is gone is dangling.
--- KEYS   held tally expiry
--- NEEDS  now uses
--- GIVES  with_body job_fields
--@include lib/read/join_body
local function with_body(job)
  local record = join_body(job[1], job[7])
  if not record then
    job[2], record = 'dangling', '1' .. string.sub(job[7], 2)
  end
  job[7] = record
  return job
end
local function job_fields(id, state, score, value, with_failures)
  local at, owner, record = '0', '', value
  if string.byte(value) == 64 then
    at, owner, record = string.match(value, '^@(%d+)%?? ([^\n]*)\n(.*)$')
  end
  local ends = redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    state = 'expired'
  end
  local counters, marks = nil, {}
  if uses_any('marks') then
    marks = redis.call('HMGET', tally, id, 'c' .. id, 'p' .. id, 's' .. id, with_failures and 'e' .. id or '-')
    counters = table.remove(marks, 1)
  else
    counters = redis.call('HGET', tally, id)
  end
  score = tonumber(score) -- below 0: a job with a priority, which is ready
  local score_text = string.format('%.0f', score < 0 and score % 4398046511104 or score)
  return {id, state, score_text, at, owner, counters or '', record, marks[1] or '', marks[2] or '', marks[3] or '', marks[4] or ''}
end
