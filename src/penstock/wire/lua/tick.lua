--- Add the job of a schedule whose tick has come, and move its tick to the next one. Or run the schedule now.
--- KEYS     @queue
--- ARGV     nonce producer name hash expected next what role record
---          nonce, producer, role  as in enqueue
---          name, hash  the schedule, and the hash of the value that the caller has read
---          expected  time of the tick, as in `ticks`; '' = add a job now; the tick stays
---          next      time of the tick after it, later than TIME, ms
---          what      run = add the job; alone = unless the last one is still waiting or active, then the tick is skipped, and one that
---                    waits for its retry and has no notes is due now; skip = skip the tick; move = only move it to an earlier time. With expected '' run or alone
---          record    as in enqueue; '' = none, with skip and move
--- BOUNDS   nonce 1 9007199254740991  expected? 0 9007199254740991  next? 0 9007199254740991
--- META     v epoch last seen off paused uses max_length full alarm enqueued replicas @producer=before
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas}  as in enqueue; count 0 = the tick was skipped
---                                                            or moved, or the last job of a run now has not ended;
---                                                            first is then the job that is due now, or ''
---          {0, nonce}                                        the schedule has no such tick, or another value; or the
---                                                            tick is not due; nothing changed
---          {-3, nonce, waiting, limit, expired}              as in enqueue, as are all that follow: the tick stays
---          {-4, nonce, paused}                               paused for producers
---          {-5, nonce}                                       no such queue
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               the record is of no known version, or asks for lease 0 without a ttl
---          {-14, nonce}                                      closed for producers
---          {-15, nonce, kind, owner, left}                   another producer has the role
---          {-16, nonce, kind}                                the role of the call has ended
---          {-19, nonce, name, value}                         malformed argument: what, expected, next, the lease of the
---                                                            record, or its priority, as in enqueue
--- FROM none  TO ready
local create, bound, wait, n, room_needed, sweep_limit, list = '', '', '0', 1, 1, 102, {record}
--@include lib/checks/check_version
--@include lib/add/check_producer (gives: raw, now, changes, created, change)
--@include lib/add/find_limit_and_expired (gives: limit, wake_empty, expired, has_urgent, remove_expired, write_ends)
--@include lib/checks/is_duration
local is_tick = expected ~= ''
if what ~= 'run' and what ~= 'alone' and not (is_tick and (what == 'skip' or what == 'move')) then
  return {-19, nonce, 'what', string.sub(what, 1, 200)}
end
if is_tick and next == '' then
  return {-19, nonce, 'next', ''}
end
--@include lib/read/schedule_entry (gives: read_entry, write_entry)
local last_run, last_tick, runs, skipped, is_paused, hashes, rest = read_entry(name)
local due = tonumber(redis.call('ZSCORE', ticks, name) or -1)
local is_due = what == 'move' or raw >= (tonumber(expected) or 0)
if not last_run or string.sub(hashes, 1, 16) ~= hash or is_tick and not (is_due and due == tonumber(expected)) then
  return {0, nonce}
end
--@include lib/read/lapsed
local is_running = what == 'alone' and last_run ~= '-' and not lapsed(last_run, redis.call('ZSCORE', once, last_run)) and (redis.call('HEXISTS', held, last_run) == 1
  and not redis.call('ZSCORE', dead, last_run) or #redis.call('XRANGE', ready, last_run, last_run) == 1)
if is_running or what == 'skip' or what == 'move' then
  local retries_at = is_running and tonumber(redis.call('ZSCORE', scheduled, last_run))
  local nacked, crashed = string.match(redis.call('HGET', tally, last_run) or '', '^%d+%+? (%d+) (%d+) ')
  local due_now = ''
  redis.call('HDEL', held, '-')
  local is_begun = uses_any('notes') and redis.call('HEXISTS', tally, 'n' .. last_run) == 1
  if retries_at and retries_at > now and nacked and nacked + crashed > 0 and not is_begun then
    --@include lib/add/priority_of
    --@include lib/add/place_jobs (gives: place, write_places)
    place(last_run, math.min(now, tonumber(string.sub(last_run, 1, -12))), has_urgent and priority_of(redis.call('HGET', held, last_run)) or 0)
    write_places()
    redis.call('HINCRBY', meta, 'promoted', 1)
    due_now = last_run
    if paused ~= 'out' and wake_empty then
      redis.call('RPUSH', wake, '1')
    end
  end
  if is_tick then
    redis.call('ZADD', ticks, next, name)
  end
  if is_tick and what ~= 'move' then
    write_entry(name, last_run, expected, runs, skipped + 1, is_paused, hashes, rest)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  return {1, nonce, due_now, 0, epoch, 0, 0, 0, replicas}
end
local waiting, space_empty = 0, false
if limit then
  --@include lib/add/check_capacity
  local refusal
  refusal, waiting, space_empty = check_capacity(limit, room_needed, expired)
  if refusal then
    return refusal
  end
end
--@include lib/add/assign_numbers (gives: ms, first, ids)
local call, record_index, batch = redis.call, {}, nil
--@include lib/add/split_body
--@include lib/add/check_records
local refusal, features = check_records(list, record_index, ids, ms)
if refusal then
  return refusal
end
local priorities, bodies = features.priorities, features.bodies
if priorities then
  --@include lib/add/place_jobs (gives: place, write_places)
  call('ZCARD', scheduled)
  call('HSET', held, first, split_body(first, record, bodies))
  place(first, math.min(now, ms), priorities[1])
  write_places()
else
  call('XADD', ready, first, 'j', split_body(first, record, bodies))
end
if #bodies > 0 then
  call('HSET', held, unpack(bodies))
end
if is_tick then
  call('ZADD', ticks, next, name)
end
write_entry(name, first, is_tick and expected or last_tick, runs + 1, skipped, is_paused, hashes, rest)
change('@' .. producer, nonce .. ' ' .. first .. ' 1 ' .. epoch .. ' 0 ' .. string.format('%.0f', raw))
--@include lib/add/note_features
--@include lib/add/note_added
remove_expired(expired)
local successor_due = write_ends()
if (paused ~= 'out' or successor_due and successor_due <= now) and wake_empty then
  call('RPUSH', wake, '1')
end
if full > now and space_empty and (waiting + n < limit or #expired.ids > 0) then
  call('RPUSH', space, '1')
end
return {1, nonce, first, n, epoch, created, 0, 0, replicas}
