--- Bring dead letters back, to the place of their creation. Their attempts count from 0 again. Their notes stay.
--- KEYS     @queue
--- ARGV     nonce wanted limit skip [number...]
---          limit   without numbers: how many of the oldest dead letters, 1 to 1000; else ''
---          skip    without numbers: how many of the oldest to skip; else ''
---          number  dead letters by number
--- BOUNDS   limit? 0 1000  skip? 0 9007199254740991
--- META     v epoch uses seen off paused
--- RETURNS  {1, nonce, done, more, kept}  without numbers; more: dead letters behind those that this call looked at;
---                               kept: how many of those stay dead, as their ttl has ended or their
---                               dedup id is taken
---          {1, nonce, done, 0, 0}        all named jobs
---          {1, nonce, done, 0, 0, code...}  not all of them; a code for each: 1 done, 0 gone, -2 not dead, -3 its ttl has ended,
---                               -13 its dedup id is taken
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number; or limit or skip, without numbers
--- FROM dead  TO scheduled
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes, end_of)
--@include lib/checks/is_number
--@include lib/meta/use
--@include lib/deliver/lease_terms (gives: lease_and_ttl)
--@include lib/add/priority_of
local has_urgent = uses_any('priorities')
--@include lib/add/place_jobs (gives: place, write_places)
local function is_alive(id) -- the job exists, and its ttl has not ended
  local ends, score = redis.call('ZSCORE', expiry, id), redis.call('ZSCORE', once, id)
  if ends then
    return tonumber(ends) > now
  elseif score then
    return end_of(score) > now
  end
  return redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1
end
local function taken(name) -- by an unfinished job, or by an open window
  local value = redis.call('HGET', dedup, name) or ''
  local ends = tonumber(string.match(value, '@(%d+)$')) or 0
  local found = ends > now
  for id in string.gmatch(value, '%d+%-%d+') do
    found = found or is_alive(id)
  end
  return found
end
local ids, codes, returned, new_counters, ttl_ends, twice, named = numbers, {}, {}, {}, {}, {}, #numbers > 0 -- returned: numbers
local owned, retaken, cleared = {}, {}, {}
if not named then
  if limit == '' or skip == '' then
    return {-19, nonce, limit == '' and 'limit' or 'skip', ''}
  end
  ids = redis.call('ZRANGE', dead, skip, skip + limit - 1)
end
for i = 1, #ids do
  local id = ids[i]
  if i > 1000 or not is_number(id) then
    return {-19, nonce, 'number', string.sub(id, 1, 200)}
  end
  if twice[id] then
    codes[i] = -2
  elseif redis.call('ZSCORE', dead, id) then
    local count = redis.call('HGET', tally, id) or '1 0 0 0'
    local value, created = redis.call('HGET', held, id) or '', math.min(now, tonumber(string.sub(id, 1, -12)))
    local _, ttl = lease_and_ttl(string.match(value, '^@[^\n]*\n(.*)$') or value)
    local header = string.match(value, '^@[^\n]*\n([^\n]*)') or string.match(value, '^[^\n]*')
    -- with `u` (until the start, or from the enqueue on) the job has lost its id
    local name = not string.find(header, ';u=', 1, true) and string.match(header, ';d=([^;]+)')
    if ttl and created + ttl <= now then
      codes[i] = -3
    elseif name and (retaken[name] or taken(name)) then
      codes[i] = -13
    else
      codes[i] = 1
      if name then
        retaken[name] = true
        owned[#owned + 1] = name
        owned[#owned + 1] = id
      end
      if ttl then
        ttl_ends[#ttl_ends + 1] = created + ttl
        ttl_ends[#ttl_ends + 1] = id
      end
      returned[#returned + 1] = id
      place(id, created, has_urgent and priority_of(value) or 0)
      new_counters[#new_counters + 1] = id
      new_counters[#new_counters + 1] = string.match(count, '^%d+%+?') .. ' 0 0 0'
      cleared[#cleared + 1] = 'c' .. id
      cleared[#cleared + 1] = 's' .. id
    end
  else
    codes[i] = (redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1) and -2 or 0
  end
  twice[id] = true
end
redis.call('ZCARD', scheduled)
redis.call('ZCARD', urgent)
redis.call('ZCARD', expiry)
redis.call('HLEN', dedup)
--@include lib/finish/notify_ended
--@include lib/batches/count_members
redis.call('ZCARD', windows)
local wake_empty, token = redis.call('LLEN', wake) == 0, not paused
if #returned > 0 then
  redis.call('HDEL', held, '-')
  redis.call('ZREM', dead, unpack(returned))
  write_places()
  if #ttl_ends > 0 then
    redis.call('ZADD', expiry, unpack(ttl_ends))
    use('ttls')
  end
  if #owned > 0 then
    redis.call('HSET', dedup, unpack(owned))
    use('dedup')
  end
  redis.call('HSET', tally, unpack(new_counters))
  if uses_any('marks') then -- the failures stay, for readers
    redis.call('HDEL', tally, unpack(cleared))
  end
  if uses_any('notes') then -- failures that were noted before count as not noted
    for i = 1, #returned do
      local name = 'n' .. returned[i]
      local count, bytes = string.match(redis.call('HGET', tally, name) or '', '^(%d+) (%d+)')
      if count then
        local voided = string.format(' %.0f -', redis.call('HSTRLEN', tally, name .. ':0'))
        redis.call('HSET', tally, name, count .. ' ' .. bytes .. ' ' .. count .. voided)
      end
    end
  end
  count_members(returned, 'open')
  redis.call('HINCRBY', meta, 'redriven', #returned)
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
end
local done = #returned
if not named then
  return {1, nonce, done, math.max(0, redis.call('ZCARD', dead) - skip - (#ids - done)), #ids - done}
elseif done == #ids then
  return {1, nonce, done, 0, 0}
end
return {1, nonce, done, 0, 0, unpack(codes)}
