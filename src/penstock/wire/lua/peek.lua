--- Read the jobs of a state, in order. Ready jobs come in the order of their delivery.
--- KEYS     @queue
--- ARGV     nonce state start count newest
---          state   ready, scheduled, parked (by key), active (first under a lease, then delivered at most once) or dead
---          start   0 to 1000 = the number of jobs to skip; -1 to -1000 = the first job, counted from the end; beyond the
---                  number of jobs = none
---          count   1 to 1000; a reply has about 1 MiB, and at least one job
---          newest  1 = from the end backwards (start is not negative then), else 0
--- BOUNDS   start -1000 1000  count 1 1000
--- META     v epoch seen off lease uses full paused
--- RETURNS  {1, nonce, now, lease, epoch, job...}  job as in show; receipt: '', of a parked job why it
---                               waits. In a queue without batches the batch is left out, and '' in front of it
---          {0, nonce, removed}           1000 expired jobs, or 1 MiB of them, were removed first: call again
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--- FROM ready, scheduled, active  TO none
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: score_of, end_of)
redis.call('ZCARD', dead)
redis.call('ZCARD', parked)
if state == 'parked' then -- what tell_wait reads behind a removal
  redis.call('ZCARD', tickets)
  redis.call('ZCARD', turns)
  redis.call('ZCARD', holds)
end
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/results/keep_results
--@include lib/sweep/expired_at_head
--@include lib/sweep/find_expired
local expired = find_expired(100)
--@include lib/sweep/remove_expired
--@include lib/sweep/sweep_expired
sweep_expired(expired)
local removed = #expired.ids
--@include lib/read/job_fields (gives: with_body)
local jobs, bytes = {}, 0
local skip, left = tonumber(start), tonumber(count)
local tail, from_end = 0, newest == '1'
if skip < 0 then -- collect backwards, reverse at the end
  tail, from_end = math.min(left, -skip), true
  skip, left = -skip - tail, tail
end
local found, passed, wasted = {}, 0, 0
local function has_expired(id)
  local ends = expired.has_more and not expired.left_out[id] and redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    found[#found + 1] = id
    expired.left_out[id] = #found
  end
  passed = passed + (expired.left_out[id] and 1 or 0)
  return expired.left_out[id]
end
local function see(id, where, score, value)
  if not value then -- an index entry whose record is gone
    passed = passed + 1
    return
  end
  if skip > 0 then
    skip = skip - 1
    return
  end
  local job = job_fields(id, where, score, value)
  jobs[#jobs + 1] = tail > 0 and job or with_body(job)
  left, bytes = left - 1, bytes + #job[7]
end
local function unfinished()
  if passed >= 1000 or wasted >= 1048576 then
    return false
  elseif skip > 0 or tail > 0 then
    return left > 0
  end
  return left > 0 and (#jobs == 0 or bytes < 1048576)
end
local function page_of(index, low, high, at)
  if from_end then
    return redis.call('ZRANGE', index, high, low, 'BYSCORE', 'REV', 'LIMIT', at, 100, 'WITHSCORES')
  end
  return redis.call('ZRANGE', index, low, high, 'BYSCORE', 'LIMIT', at, 100, 'WITHSCORES')
end
local function seen_in(index, where, low, high)
  local leased = index == active or index == once
  local at = 0
  while unfinished() do
    local page = page_of(index, low, high, at)
    for i = 1, #page, 2 do
      if not unfinished() then
        return
      end
      if not has_expired(page[i]) then -- a skipped job is not read
        local value = skip > 0 and '' or redis.call('HGET', held, page[i])
        local at = leased and end_of(page[i + 1]) or where == 'parked' and string.sub(page[i], 1, -12) or page[i + 1]
        see(page[i], where, at, value)
      end
    end
    if #page < 200 then
      return
    end
    at = at + 100
  end
end
local function merged() -- due jobs and the stream, by due time or creation, ties by number
  local at, bound, page, e, due, d = 0, from_end and '+' or '-', {}, 1, {}, 1
  local ended, drained = false, false
  while unfinished() do
    if d > #due and not ended then
      due, d = page_of(scheduled, '-inf', now, at), 1
      at, ended = at + 100, #due < 200
    end
    if e > #page and not drained then
      if from_end then
        page, e = redis.call('XREVRANGE', ready, bound, '-', 'COUNT', 16), 1
      else
        page, e = redis.call('XRANGE', ready, bound, '+', 'COUNT', 16), 1
      end
      drained = #page < 16
      if #page > 0 then
        local last = page[#page][1]
        bound = string.sub(last, 1, -11) .. string.format('%.0f', string.sub(last, -10) + (from_end and -1 or 1))
      end
    end
    local id, entry = due[d], page[e]
    if id and entry then
      local own, score = tonumber(string.sub(entry[1], 1, -12)), tonumber(due[d + 1])
      local is_first = own < score or own == score and entry[1] < id
      if is_first ~= from_end then
        id = nil
      end
    end
    if id then
      if not has_expired(id) then
        see(id, 'ready', due[d + 1], skip > 0 and '' or redis.call('HGET', held, id))
      end
      d = d + 2
    elseif entry then
      if has_expired(entry[1]) then
        wasted = wasted + #entry[2][2]
      else
        see(entry[1], 'ready', string.sub(entry[1], 1, -12), entry[2][2])
      end
      e = e + 1
    else
      break
    end
  end
end
local over = string.format('%.0f', score_of(now, 4095))
if state == 'ready' then
  if not from_end then
    seen_in(active, 'ready', '-inf', over)
  end
  merged()
  if from_end then
    seen_in(active, 'ready', '-inf', over)
  end
elseif state == 'scheduled' then
  seen_in(scheduled, 'scheduled', '(' .. string.format('%.0f', now), '+inf')
elseif state == 'parked' then
  seen_in(parked, 'parked', '-inf', '+inf')
elseif state == 'dead' then
  seen_in(dead, 'dead', '-inf', '+inf')
else
  if from_end then
    seen_in(once, 'once', '(' .. over, '+inf')
  end
  seen_in(active, 'active', '(' .. over, '+inf')
  if not from_end then
    seen_in(once, 'once', '(' .. over, '+inf')
  end
end
if #found > 0 then
  release_dedup(found, false)
  expired.ids, expired.once, removed = found, {}, removed + #found
  expired.trim_to, expired.head_count, expired.others = expired_at_head(found, expired.left_out)
  sweep_expired(expired)
end
if removed > 0 and (passed >= 1000 or wasted >= 1048576) then
  return {0, nonce, removed}
end
local reply = {1, nonce, now, lease, epoch or ''}
if tail == 0 then
  for i = 1, #jobs do
    reply[#reply + 1] = jobs[i]
  end
elseif #jobs == tail then
  for i = tail, 1, -1 do
    if i == tail or bytes < 1048576 then
      reply[#reply + 1] = with_body(jobs[i])
      bytes = (i == tail and 0 or bytes) + #jobs[i][7]
    end
  end
end
--@include lib/read/batch_of (gives: has_batches)
--@include lib/read/tell_wait
for i = 6, (has_batches or state == 'parked') and #reply or 0 do
  reply[i][12] = ''
  if reply[i][2] == 'parked' then
    tell_wait(reply[i])
  end
  reply[i][13] = has_batches and batch_of(reply[i][1]) or nil
end
return reply
