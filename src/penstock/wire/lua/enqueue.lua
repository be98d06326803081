--- Add jobs: to ready, or with a delay to scheduled. All of them, or none.
--- KEYS     ready held active scheduled once tally expiry meta wake space producer
--- ARGV     nonce create delay bound wait [record...]
---          nonce   the producer's call number: equal to the last one = a repeat, lower = stale
---          create  '' = only if the queue exists; 8 hex = registered, may be made with this epoch
---          delay   ms from now; or '@' and an absolute time in ms
---          bound   '' or the most jobs that may wait, beside the queue's own max_length
---          wait    ms for which the producer will wait when the queue is full, 0 = not at all
---          record  1 to 1000 of them; none = only put the space token back if there is room
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas}  added: numbers first, first + 1, ...;
---                                                            scheduled: 1, or 0 = ready; replicas: the queue's setting
---          {-3, nonce, waiting, limit, swept}                full; nothing added; swept > 0: ended jobs were removed,
---                                                            try again
---          {-4, nonce, paused}                               paused for producers; nothing added
---          {-5, nonce}                                       no such queue: register it, then create
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               record number index is of no known version, or asks for
---                                                            lease 0 without a ttl; nothing added
--- FROM none  TO ready, scheduled
local n = #ARGV - 5
local m = redis.call('HMGET', meta, 'v', 'epoch', 'last', 'seen', 'off', 'paused', 'uses', 'max_length',
  'full', 'alarm', 'enqueued', 'replicas')
--@include lib/version
local changes = {}
local seen, off = tonumber(m[4]) or 0, tonumber(m[5]) or 0
--@include lib/now
local epoch, last, paused, uses = m[2], m[3], m[6], m[7] or ''
local full, alarm = tonumber(m[9]) or 0, tonumber(m[10]) or 0
local before = redis.call('GET', producer)
if before then
  local number, wanted = tonumber(string.match(before, '^%d+')), tonumber(nonce)
  local from, total, of, later
  if number == wanted then
    from, total, of, later = string.match(before, '^%d+ (%S+) (%d+) (%x+) (%d)$')
  end
  if of == epoch and from then
    redis.call('PEXPIRE', producer, 600000)
    if #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
    return {1, nonce, from, tonumber(total), epoch, 0, 1, tonumber(later), tonumber(m[12]) or 0}
  elseif number > wanted then
    return {-7, nonce, string.match(before, '^%d+')}
  end
end
local created = 0
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch = create
  created = 1
end
if paused == 'in' or paused == 'all' then
  return {-4, nonce, paused}
end
local limit = tonumber(m[8])
if tonumber(bound) and (not limit or tonumber(bound) < limit) then
  limit = tonumber(bound)
end
local asleep, hungry = redis.call('LLEN', wake) == 0, false
local waiting = 0
--@include lib/lapsed
if limit then
  hungry = redis.call('LLEN', space) == 0
  waiting = redis.call('XLEN', ready) + redis.call('ZCARD', scheduled)
  if waiting + n > limit then
    local waits = tonumber(wait) > 0 and created == 0 and now + wait > full
    if waits or #lapsed + #spent > 0 then
      redis.call('HDEL', held, '-') -- nothing is added, so a full server lets it pass
    end
    -- room may be held by jobs whose ttl has ended
    --@include lib/expire
    if #lapsed > 0 and hungry and full > now and redis.call('XLEN', ready) + redis.call('ZCARD', scheduled) < limit then
      redis.call('RPUSH', space, '1')
    end
    if waits then
      changes[#changes + 1] = 'full'
      changes[#changes + 1] = now + wait
    end
    if #changes > 0 and (waits or #lapsed + #spent > 0) then
      redis.call('HSET', meta, unpack(changes))
    end
    return {-3, nonce, waiting, limit, #lapsed}
  end
end
if n == 0 then
  if full > now and hungry and waiting < limit then
    redis.call('HDEL', held, '-')
    redis.call('RPUSH', space, '1')
  end
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
end
-- Numbers: this ms, or the last one's, never lower. seq starts at 1000000000: it always has ten digits.
local ms, seq = now, 1000000000
if last then
  local s = tonumber(string.sub(last, 1, -12))
  if not s or s >= ms then
    local q
    s, q = string.match(last, '^(%d+)-(%d+)$')
    s, q = tonumber(s), tonumber(q)
    if s >= ms then
      ms, seq = s, q + 1
      if seq < 1000000000 or seq + n > 4294967295 then
        ms, seq = s + 1, 1000000000
      end
    end
  end
end
local prefix = string.format('%.0f-', ms)
local first = prefix .. (seq == 1000000000 and '1000000000' or seq)
local final = n == 1 and first or prefix .. (seq + n - 1)
local ids, lives = {first}, nil
if n > 1 then -- only each tenth number is formatted, which costs three times a concatenation
  local digits = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
  local digit, stem = seq % 10, prefix .. (seq - seq % 10) / 10
  for i = 2, n do
    digit = digit + 1
    if digit == 10 then
      digit, stem = 0, prefix .. (seq + i - 1) / 10
    end
    ids[i] = stem .. digits[digit]
  end
end
local call, byte = redis.call, string.byte
local head, ttl, stop = nil, nil, nil
for i = 1, n do
  local record = ARGV[i + 5]
  local version, _, third, _, zero = byte(record, 1, 5)
  local own = third == 108 or third == 116
  if own and not (head and string.sub(record, 1, #head) == head) then -- mostly the same as that of the record before
    head = string.match(record, '^[^\n]*\n')
    ttl = string.match(record, '^1[;l=%d]*;t=(%d+)')
    stop = ttl and string.format('%.0f', ms + ttl)
  end
  -- at most once (l=0) needs an end: nothing else would ever remove a job that nobody acknowledges
  if version ~= 49 or third == 108 and zero == 48 and not ttl then
    return {-10, nonce, i}
  end
  if own and ttl then
    lives = lives or {}
    lives[#lives + 1] = stop
    lives[#lives + 1] = ids[i]
  end
end
if lives then
  call('ZCARD', expiry)
end
local later
if string.sub(delay, 1, 1) == '@' then
  later = string.sub(delay, 2) - raw
else
  later = tonumber(delay)
end
local token = paused ~= 'out'
if later > 0 then
  call('ZCARD', scheduled)
  local records, due, ends = {}, {}, {}
  for i = 2, lives and #lives or 0, 2 do
    ends[lives[i]] = lives[i - 1]
  end
  local at = string.format('%.0f', now + later)
  for i = 1, n do
    local last = ends[ids[i]]
    records[i * 2 - 1], records[i * 2] = ids[i], ARGV[i + 5]
    due[i * 2 - 1], due[i * 2] = last and tonumber(last) < now + later and last or at, ids[i]
  end
  call('HSET', held, unpack(records))
  call('ZADD', scheduled, unpack(due))
  --@include lib/announce
  token = announce(now + later, false) and token
else
  for i = 1, n do
    call('XADD', ready, ids[i], 'j', ARGV[i + 5])
  end
end
if lives then
  call('ZADD', expiry, unpack(lives))
  if not string.find(uses, 't', 1, true) then
    uses = uses .. 't'
    changes[#changes + 1] = 'uses'
    changes[#changes + 1] = uses
  end
end
if created == 1 then
  changes[#changes + 1] = 'v'
  changes[#changes + 1] = '1'
  changes[#changes + 1] = 'epoch'
  changes[#changes + 1] = epoch
  changes[#changes + 1] = 'uses'
  changes[#changes + 1] = uses
  changes[#changes + 1] = 'made'
  changes[#changes + 1] = now
end
changes[#changes + 1] = 'last'
changes[#changes + 1] = final
changes[#changes + 1] = 'enqueued'
changes[#changes + 1] = (m[11] or 0) + n
call('HSET', meta, unpack(changes))
call('SET', producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (later > 0 and ' 1' or ' 0'), 'PX', 600000)
--@include lib/expire
--@include lib/wake
if full > now and hungry and (waiting + n < limit or #lapsed > 0) then
  call('RPUSH', space, '1')
end
return {1, nonce, first, n, epoch, created, 0, later > 0 and 1 or 0, tonumber(m[12]) or 0}
