--- Count the jobs of a queue without reading them. Nothing changes. The figures are exact unless more than 1,000 jobs
--- have expired, and others are parked or wait for other jobs.
--- KEYS     @queue
--- ARGV     nonce
--- META     v seen off uses
--- RETURNS  {1, nonce, now, ready, scheduled, active, dead, unswept, oldest, parked, batches, staged, promised, dependent, fields: (field, value)...}  ready: jobs
---                     that can be reserved now; unswept: jobs whose ttl has ended and that no call has removed, which no other number
---                     includes; oldest: for how many ms the oldest of the ready jobs has been ready, -1 = none (too high if the
---                     first 16 jobs have all expired); parked: jobs that wait for others of their keys, with those whose ttl has
---                     ended; batches: those whose callbacks have not ended; staged, promised: rows that are not yet in the queue,
---                     see protocol/staging.md; dependent: jobs of scheduled that wait for other jobs, which max_length does not
---                     count; then the fields of meta, `kept`, the number of kept results, and
---                     `held_keys`, how many keys are held now, if any was, and `last_death`, the time of the last death
---                     among the dead letters
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: raw, score_of, end_of)
--@include lib/meta/all_fields
local fields = all_fields()
if uses_any('key_holds') then
  local last_end = string.format('%.0f', now + 90000000) -- a later one was written by a wrong clock
  fields[#fields + 1] = 'held_keys'
  fields[#fields + 1] = string.format('%.0f', redis.call('ZCOUNT', holds, string.format('(%.0f', now), last_end))
end
local last_dead = redis.call('ZRANGE', dead, -1, -1, 'WITHSCORES')
if last_dead[2] then
  fields[#fields + 1], fields[#fields + 2] = 'last_death', string.format('%.0f', last_dead[2])
end
local stream, due = redis.call('XLEN', ready), redis.call('ZCOUNT', scheduled, '-inf', now)
local ended_leases, expired_jobs = redis.call('ZCOUNT', active, '-inf', score_of(now, 4095)), redis.call('ZCOUNT', expiry, '-inf', now)
local expired_once_jobs = redis.call('ZCOUNT', once, '-inf', score_of(now, 4095))
-- The due time of a job is at most the end of its ttl, unless it waits for other jobs (2^53 - 1). So each expired job is in ready, is due, its lease has ended, or it
-- waits for other jobs, parked or in scheduled: the sum of the first three, minus their expired jobs, can be reserved. At most
-- 1000 expired jobs are looked up.
local parked_jobs, dependents = redis.call('ZCARD', parked), redis.call('ZCOUNT', scheduled, '9007199254740991', '+inf')
local expired_parked, expired_dependents = 0, 0
if parked_jobs + dependents > 0 and expired_jobs > 0 then
  local ids = redis.call('ZRANGE', expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1000)
  local scores, due_times = redis.call('ZMSCORE', parked, unpack(ids)), redis.call('ZMSCORE', scheduled, unpack(ids))
  for i = 1, #ids do
    expired_parked = expired_parked + (scores[i] and 1 or 0)
    expired_dependents = expired_dependents + (tonumber(due_times[i] or 0) == 9007199254740991 and 1 or 0)
  end
end
local oldest, depth = -1, expired_jobs > 0 and 16 or 1
-- Return the time of the first job that has not expired. If all `depth` jobs have expired, that of the last as an estimate.
local function first_time(page) -- {number, time...}
  local ids = {}
  for i = 1, #page, 2 do
    ids[#ids + 1] = page[i]
  end
  local ends = depth > 1 and #ids > 0 and redis.call('ZMSCORE', expiry, unpack(ids)) or {}
  for i = 1, #ids do
    if not ends[i] or tonumber(ends[i]) > now or i == depth then
      return page[2 * i]
    end
  end
end
local ready_page = {}
for i, entry in ipairs(redis.call('XRANGE', ready, '-', '+', 'COUNT', depth)) do
  ready_page[2 * i - 1], ready_page[2 * i] = entry[1], string.sub(entry[1], 1, -12)
end
local first_ready = first_time(ready_page)
if first_ready then
  oldest = math.max(0, now - first_ready)
end
local scheduled_page = redis.call('ZRANGE', scheduled, 0, depth - 1, 'WITHSCORES')
local first_due, first_ended_lease = first_time(scheduled_page), first_time(redis.call('ZRANGE', active, 0, depth - 1, 'WITHSCORES'))
if first_due and tonumber(scheduled_page[2]) < 0 then -- the first job of each priority
  for priority = 9, 0, -1 do
    local low, high = -priority * 4398046511104, '(' .. string.format('%.0f', (1 - priority) * 4398046511104)
    local first_of_priority = first_time(redis.call('ZRANGE', scheduled, low, high, 'BYSCORE', 'LIMIT', 0, depth, 'WITHSCORES'))
    oldest = math.max(oldest, first_of_priority and math.max(0, now - first_of_priority % 4398046511104) or -1)
  end
  first_due = nil
end
oldest = math.max(oldest, first_due and now - first_due or -1, first_ended_lease and now - end_of(first_ended_lease) or -1)
local available = math.max(0, stream + due + ended_leases - expired_jobs + expired_parked + expired_dependents)
if available == 0 then -- all of them have expired
  oldest = -1
end
local staged_rows, promised_rows, era = 0, 0, redis.call('GET', writes)
for _, entry in ipairs(redis.call('HVALS', staged)) do -- at most 1000
  local ends, rows, promise = string.match(entry, '^(%d+) (%d+) ?(.*)$')
  if tonumber(ends) > raw then
    if promise == era then
      promised_rows = promised_rows + rows
    else
      staged_rows = staged_rows + rows
    end
  end
end
return {1, nonce, now, available, redis.call('ZCARD', scheduled) - due - expired_dependents,
  redis.call('ZCARD', active) - ended_leases + redis.call('ZCARD', once) - expired_once_jobs, redis.call('ZCARD', dead),
  expired_jobs + expired_once_jobs, oldest, parked_jobs, redis.call('HLEN', batches), staged_rows, promised_rows,
  dependents - expired_dependents, unpack(fields)}
