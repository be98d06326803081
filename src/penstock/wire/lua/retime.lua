--- Correct times that a wrong server clock set too far ahead: a page of one structure.
--- KEYS     @queue
--- ARGV     nonce place skip horizon write
---          place    active, once, scheduled, dead, expiry, windows, or meta, which is one page
---          skip     0 for the first page, then that of the last reply
---          horizon  ms: the longest delay or window in use
---          write    1 = correct the times; 0 = count them, nothing changes
--- BOUNDS   skip 0 9007199254740991  horizon 0 3162240000000
--- META     v epoch seen off uses lease last paused made producer consumer alarm full surveyed
--- RETURNS  {1, nonce, found, skip, now}  found: wrong times of this page; skip: of the next page, -1 = this is the last
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: changes, raw, score_of, end_of)
--@include lib/deliver/lease_terms (gives: lease_and_ttl, lease_span)
local late, far = now + 60000, now + horizon
local found, bytes, passed, more = 0, 0, tonumber(skip), false
local sets, names, drops, put = {}, {}, {}, {active = {}, scheduled = {}, once = {}, dead = {}, expiry = {}, windows = {}}
for _, one in ipairs({active, scheduled, once, dead, expiry, windows}) do
  redis.call('ZCARD', one)
end
redis.call('HLEN', dedup)
local has_urgent = uses_any('priorities')
redis.call('ZCARD', urgent)
local wake_empty, token = redis.call('LLEN', wake) == 0, false
local function note(list, value, name)
  list[#list + 1] = value
  list[#list + 1] = name
end
local function due(old, created, delivered) -- of a delayed job
  if delivered > late and old >= delivered then
    return now + old - delivered
  elseif created > late and old >= created and now + old - created < created then
    return now + old - created
  end
  return old > far and now or old
end
local function successor(id, record) -- it waits for the end of another job, then for its due time
  local name = string.match(record, '^[1+][^\n]-;d=([^;\n]+)')
  local owner, next, wait = string.match(name and redis.call('HGET', dedup, name) or '', '^(%S+) (%S+) (%d+)$')
  local new = next == id and due(tonumber(wait), tonumber(string.sub(id, 1, -12)), 0)
  if new and new ~= tonumber(wait) then
    note(names, name, owner .. ' ' .. id .. string.format(' %.0f', new))
    return true
  end
end
local function mend(id) -- returns if a time of this job is too far ahead
  local value, delivered, wrong = redis.call('HGET', held, id), 0, false
  local entry = not value and redis.call('XRANGE', ready, id, id)[1]
  if not value and not entry then
    return false
  end
  local record = value or entry[2][2]
  bytes = bytes + #record
  local at, rest_of_note = string.match(record, '^@(%d+)(%?? [^\n]*\n)')
  if at then
    record, delivered = string.sub(record, #at + #rest_of_note + 2), tonumber(at)
  end
  local own, ttl = lease_and_ttl(record)
  local ends, longest = tonumber(redis.call('ZSCORE', expiry, id)), ttl or 86400000
  local alive = ttl or 3600000 -- an hour for the callback of an open batch
  if ends and ends > late + alive then
    ends, wrong = now + alive, true
    note(put.expiry, ends, id)
  end
  local leased, expired_once = redis.call('ZSCORE', active, id), redis.call('ZSCORE', once, id)
  local waits, died = redis.call('ZSCORE', scheduled, id), redis.call('ZSCORE', dead, id)
  local old, new, list = nil, nil, nil
  if leased then
    old, list = end_of(leased), put.active
    if delivered > late and old >= delivered then
      new = now + math.min(old - delivered, 2073600000)
    elseif old > late + 2073600000 then -- longer than any lease
      new = now + lease_span(own, ttl, lease)
    end
  elseif expired_once then
    old, list = end_of(expired_once), put.once
    new = old > late + longest and now + longest
  elseif waits then
    old, list = tonumber(waits), put.scheduled
    if old < 9007199254740991 then
      new = due(old, tonumber(string.sub(id, 1, -12)), delivered)
    else
      wrong = successor(id, record) or wrong
    end
  elseif died then
    old, list = tonumber(died), put.dead
    new = old > late and now
  end
  new = new or old
  if ends and not died and new and new < 9007199254740991 then -- no time of a job is later than the end of its ttl
    new = math.min(new, ends)
  end
  if new ~= old then
    wrong = true
    note(list, (leased or expired_once) and score_of(new, (leased or expired_once) % 4096) or new, id)
  end
  if delivered > late then
    wrong = true
    note(sets, id, string.format('@%.0f', now) .. rest_of_note .. record)
  end
  return wrong
end
local function close(name) -- returns if its window ends beyond the horizon
  local value = redis.call('HGET', dedup, name) or ''
  local ends = tonumber(string.match(value, '@(%d+)$')) or 0
  if ends > far then
    note(names, name, string.gsub(value, '@%d+$', string.format('@%.0f', now)) .. '')
  end
  note(put.windows, now, name)
  return true
end
local index = ({active = active, once = once, scheduled = scheduled, dead = dead, expiry = expiry, windows = windows})[place]
if index then
  local low, looked, page = place == 'windows' and far or now, 0, nil
  low = (index == active or index == once) and score_of(low, 4095) or low
  local results = index == expiry and redis.call('ZCOUNT', expiry, '2251799813685248', '+inf') or 0 -- no jobs
  repeat
    page = redis.call('ZRANGE', index, results + skip + looked, results + skip + looked + 99, 'REV', 'WITHSCORES')
    more = #page == 200
    for i = 1, #page, 2 do
      if tonumber(page[i + 1]) <= low then
        more = false
        break
      elseif bytes >= 1048576 then
        more = true
        break
      end
      local wrong = index == windows and close(page[i]) or index ~= windows and mend(page[i])
      looked, found, passed = looked + 1, found + (wrong and 1 or 0), passed + (wrong and write == '1' and 0 or 1)
    end
  until not more or looked >= 1000 or bytes >= 1048576
elseif place == 'meta' and epoch then
  found = seen > raw + 2592000000 and 1 or 0
  local marks, roles = {alarm = alarm, full = full, surveyed = surveyed}, {producer = producer, consumer = consumer}
  for name, value in pairs(marks) do
    if (tonumber(value) or 0) > late then
      found = found + 1
      drops[#drops + 1] = name
    end
  end
  if made > late then
    found = found + 1
    note(changes, 'made', now)
  end
  for kind, value in pairs(roles) do -- a role that ends later than its lease allows
    local fence, ends, span = string.match(value or '', '^(%d+)%S* (%d+) (%d+) ')
    if ends and tonumber(ends) > late + span then
      found = found + 1
      note(changes, kind, fence)
    end
  end
  local last_ms = tonumber(string.match(last or '', '^%d+')) or 0
  if last_ms > late and redis.call('XLEN', ready) == 0 and redis.call('EXISTS', held) == 0 then -- no job has a number
    found = found + 1
    drops.stream = true
    note(changes, 'last', string.format('%.0f-4294967295', now))
  end
end
if write == '1' and found > 0 then
  redis.call('HDEL', held, '-')
  --@include lib/add/write_in_parts
  for name, one in pairs({active = active, scheduled = scheduled, once = once, dead = dead, expiry = expiry, windows = windows}) do
    write_in_parts(put[name], function(...) redis.call('ZADD', one, ...) end)
  end
  for i = 2, has_urgent and #put.scheduled or 0, 2 do
    local score = redis.call('ZSCORE', urgent, put.scheduled[i])
    if score then
      redis.call('ZADD', urgent, put.scheduled[i - 1] * 16 + score % 16, put.scheduled[i])
    end
  end
  if #sets > 0 then
    redis.call('HSET', held, unpack(sets))
  end
  if #names > 0 then
    redis.call('HSET', dedup, unpack(names))
  end
  if drops.stream then
    redis.call('DEL', ready)
  end
  if index then
    drops[#drops + 1] = 'alarm' -- a consumer may have to be woken for a corrected time
  end
  if #drops > 0 then
    redis.call('HDEL', meta, unpack(drops))
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  token = not paused
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
end
return {1, nonce, found, more and passed or -1, now}
