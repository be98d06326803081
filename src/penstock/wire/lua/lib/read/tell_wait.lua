-- tell_wait(job) adds to a parked job, a result of job_fields, why it waits, in place of the receipt: 'held' = for the end of a hold of its key; else
-- the number of tickets of its key and, behind a blank, the limit, which is absent if the queue has none: '4 4'. In place of the time of its
-- creation it writes the time from which the rate or a hold of its key allows the next job, if that is later than now. It looks once at each key.
--- KEYS   meta parked tickets turns holds
--- NEEDS  now uses
--- GIVES  tell_wait
--@include lib/keyed/hold_end
local settings, waits = nil, {}
local function tell_wait(job)
  local hash = redis.call('ZSCORE', parked, job[1])
  if not hash then -- peek has removed an expired job meanwhile, and so admitted this one
    return
  end
  hash = string.format('%.0f', hash)
  local wait = waits[hash]
  if not wait then
    settings = settings or redis.call('HMGET', meta, 'ordered', 'per_key', 'share')
    local limit, ends = settings[1] == '1' and '1' or settings[2] or settings[3], hold_end(hash)
    wait = {
      ends and 'held' or redis.call('ZCOUNT', tickets, hash, hash) .. (limit and ' ' .. limit or ''),
      math.max(redis.call('ZSCORE', turns, hash) or 0, ends or 0)
    }
    waits[hash] = wait
  end
  job[12] = wait[1]
  if wait[2] > now then
    job[3] = string.format('%.0f', wait[2])
  end
end
