--- Add jobs: to ready, with a delay to scheduled, or parked behind others of their keys. All of them, or none.
--- KEYS     @queue
--- ARGV     nonce producer (create delay bound wait role) [record...]
---          nonce   the producer's call number: equal to the last one = a repeat, lower = stale
---          producer  the id of the calling producer: 16 hex digits
---          create  '' = only if the queue exists; 8 hex = registered, may be made with this epoch; '&' and the number of the
---                  callback of an open batch that the jobs join (protocol/batches.md)
---          delay   ms from now; or '@' and an absolute time in ms. It is that of all records
---          bound   '' or the most jobs that may wait; the queue's max_length applies as well
---          wait    ms for which the producer will wait if the queue is full; 0 = not at all
---          role    '' or the producer's exclusive role: fence and token of acquire, joined by a dash.
---                  A call with the keys of the fast lane leaves out create to role
---          record  1 to 1000 records; none = only put the space token back if there is room
--- BOUNDS   nonce 1 9007199254740991  bound? 0 9007199254740991  wait 0 3162240000000
--- META     v epoch last seen off uses enqueued @producer=before
--- MORE     paused max_length full alarm replicas
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas}  added: numbers first, first + 1, ...;
---                                                            scheduled: 1, or 0 = ready; replicas: the queue's setting
---          {5, nonce, first, count, epoch, created, repeat, scheduled, replicas}  the same, by the fast lane: the last four are 0
---          {-3, nonce, waiting, limit, expired}              full; nothing added; expired > 0: so many expired jobs were
---                                                            removed, try again
---          {-4, nonce, paused}                               paused for producers; nothing added
---          {-5, nonce}                                       no such queue: register it, then create
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               record number index is of no known version, asks for
---                                                            lease 0 without a ttl, or is one too many; nothing added
---          {-14, nonce}                                      closed for producers; nothing added
---          {-15, nonce, kind, owner, left}                   another producer has the role, for so many ms
---                                                            unless it is renewed; nothing added
---          {-16, nonce, kind}                                the role of the call has ended; nothing added
---          {-19, nonce, name, value}                         malformed argument: create, delay, or of a record the lease, ttl or window,
---                                                            or its priority on an ordered queue
---          {-20, nonce}                                      more than the fast lane can do: repeat the call with all keys;
---                                                            nothing added
---          {-21, nonce}                                      no such open batch
--- FROM none  TO ready, scheduled
local n, room_needed = #records, #records
local sweep_limit = 100 + 2 * n
--@include lib/checks/check_version
--@include lib/meta/server_time (gives: now_ms, since)
local seed
do -- few locals fit into a script
  --@include lib/add/check_repeat (gives: from, total, of, delay_before)
  if from then
    local replicas = tonumber(redis.call('HGET', meta, 'replicas')) or 0
    return {1, nonce, from, tonumber(total), of, 0, 1, tonumber(delay_before), replicas}
  end
end
repeat -- the fast lane: jobs for ready, without options that concern their place or their end; a `break` leaves it, see reserve
  if create and (create ~= '' or delay ~= '0' or bound ~= '' or role ~= '') or uses_any('large_bodies closed max_active rate holds limits tickets once roles ttls')
    or not epoch or off > 0 or since < 0 or n == 0 or n > 1000 then
    break
  end
  local keeps, byte, fits = uses_any('results'), string.byte, true
  for i = 1, n do
    local record = records[i]
    local version, sign, field = byte(record, 1, 3)
    local lease = sign == 59 and field == 108 and tonumber(string.match(record, keeps and '^1;l=([1-9]%d*);[^tp;l=%d]' or '^1;l=([1-9]%d*);[^tpk;l=%d]'))
    -- a ttl or a policy, or the first job whose result is kept; or what is no field, behind which check_records finds one
    if version ~= 49 or #record > 4096 or sign == 59 and (field == 116 or field == 112 or field == 107 and not keeps or field == 108
      and not (lease and lease <= 2073600000 and now_ms + lease <= 3934712855551)) then
      fits = false
      break
    end
  end
  if not fits then
    break
  end
  local call = redis.call
  local wake_empty = call('LLEN', wake) == 0
  --@include lib/add/next_number
  --@include lib/add/number_list (gives: first, final, ids)
  for i = 1, n do
    call('XADD', ready, ids[i], 'j', records[i])
  end
  call('HSET', meta, 'last', final, 'enqueued', enqueued + n, '@' .. producer, nonce .. ' ' .. first .. (n == 1 and ' 1 ' or ' ' .. n .. ' ') .. epoch .. ' 0 ' .. now_ms)
  if since >= 1000 then
    call('HSET', meta, 'seen', now_ms)
  end
  if not before then
    local raw, sampled = now_ms, 8
    --@include lib/sweep/drop_producers
  end
  if wake_empty then
    call('RPUSH', wake, '1')
  end
  return {5, nonce, first, n, epoch, 0, 0, 0, 0}
until true
--@full
--@include lib/meta/changes (gives: change)
--@include lib/meta/clock (gives: raw, now)
--@include lib/meta/scores
--@include lib/checks/is_lease
--@include lib/add/check_adding (gives: created)
--@include lib/add/find_limit_and_expired (gives: keyed, limit, wake_empty, expired, remove_expired, write_ends)
--@include lib/add/check_delay (gives: delays, delay_ms)
--@include lib/batches/check_open_batch (gives: batch, keeps_values)
if delays and delays[2] then
  return {-19, nonce, 'delay', string.sub(delay, 1, 200)}
end
if n > 1000 then
  return {-10, nonce, 1001}
end
--@include lib/add/check_ttls
local waiting, space_empty = 0, false
if limit then
  --@include lib/add/check_capacity
  local refusal
  refusal, waiting, space_empty = check_capacity(limit, room_needed, expired)
  if refusal then
    return refusal
  end
end
if n == 0 then
  if full > now and space_empty and waiting < limit then
    redis.call('HDEL', held, '-')
    redis.call('RPUSH', space, '1')
  end
  --@include lib/checks/renew_role
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
end
--@include lib/add/assign_numbers (gives: ms, first, final, ids)
local call, list, record_index = redis.call, records, {}
--@include lib/add/split_body (gives: is_read)
is_read = keeps_values(batch) == 1
--@include lib/add/check_records
local refusal, features = check_records(list, record_index, ids, ms)
if refusal then
  return refusal
end
local priorities, bodies = features.priorities, features.bodies
local token = paused ~= 'out'
if delay_ms > 0 or priorities or keyed then
  call('ZCARD', scheduled)
  call('HLEN', held)
  call('XLEN', ready)
  local held_pairs, parks = {}, 0
  --@include lib/add/place_jobs (gives: place, write_places)
  local due, at = now + delay_ms, string.format('%.0f', delay_ms > 0 and now + delay_ms or math.min(now, ms))
  for i = 1, n do
    local id, priority = ids[i], priorities and priorities[i] or 0
    local record = split_body(id, records[i], bodies)
    local is_parked = keyed and delay_ms <= 0 and not keyed.take(id, record)
    if delay_ms > 0 or priority > 0 or is_parked then
      held_pairs[#held_pairs + 1] = id
      held_pairs[#held_pairs + 1] = record
    else
      call('XADD', ready, id, 'j', record)
    end
    if is_parked then
      parks = parks + 1
    elseif delay_ms > 0 or priority > 0 then
      place(id, at, priority)
    end
  end
  if #held_pairs > 0 then
    call('HSET', held, unpack(held_pairs))
  end
  write_places()
  token = token and parks < n
  if delay_ms > 0 then
    --@include lib/deliver/announce
    token = announce(due, false) and token
  end
else
  for i = 1, n do
    call('XADD', ready, ids[i], 'j', split_body(ids[i], records[i], bodies))
  end
end
if #bodies > 0 then
  call('HSET', held, unpack(bodies))
end
change('@' .. producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (delay_ms > 0 and ' 1 ' or ' 0 ') .. string.format('%.0f', raw))
--@include lib/add/note_features
--@include lib/add/note_added
remove_expired(expired)
local successor_due = write_ends()
if successor_due and paused ~= 'out' then
  --@include lib/deliver/announce
  if successor_due <= now then
    token = true
  elseif announce(successor_due, false) then -- a key may have its next job soon
    token = true
    redis.call('HSET', meta, 'alarm', string.format('%.0f', successor_due))
  end
end
if token and wake_empty then
  redis.call('RPUSH', wake, '1')
end
if full > now and space_empty and (waiting + n < limit or #expired.ids > 0) then
  call('RPUSH', space, '1')
end
return {1, nonce, first, n, epoch, created, 0, delay_ms > 0 and 1 or 0, replicas}
