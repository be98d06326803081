-- Check if this producer may add jobs now. Gives delay_ms (the longest delay), delays (one for each record; nil = all
-- have delay_ms), the capacity (limit) and the expired jobs.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake space
---        parked tickets
--- NEEDS  nonce producer epoch replicas uses full create paused max_length bound delay off role seen sweep_limit v before
--- SETS   epoch off uses
--- GIVES  keyed seed raw now changes is_lease is_duration delay_ms delays created limit wake_empty
---        drop_bodies change end_of expired nothing has_urgent remove_expired write_dedup write_dedup_and_wake
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes, raw)
--@include lib/checks/is_lease
local seed
do -- few locals fit into a script
  --@include lib/add/check_repeat (gives: from, total, of, delay_before, others)
  if from then
    if epoch and #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
    local reply = {1, nonce, from, tonumber(total), of, 0, 1, tonumber(delay_before), replicas}
    for at, what, id, state, header in string.gmatch(others, '(%d+) (%-?%d) (%S*) (%a+) ([^\n]*)\n') do -- of claim
      local i = #reply
      reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = tonumber(at), tonumber(what), id, state
      reply[i + 5] = header
    end
    return reply
  end
end
local created = 0
do
  local kind = 'producer'
  --@include lib/checks/check_role (gives: taken_by, left, lost)
  local closed = uses_any('closed')
  if (closed or lost or taken_by) and full > now and redis.call('LLEN', space) == 0 then
    redis.call('HDEL', held, '-') -- refused: wake the next producer that waits for room, too
    redis.call('RPUSH', space, '1')
  end
  if lost then
    return {-16, nonce, kind}
  end
  if not epoch then
    if redis.call('EXISTS', ready, held) > 0 then
      return {-8, nonce}
    elseif create == '' or #create > 8 then
      return {-5, nonce}
    end
    epoch = create
    created = 1
  end
  if closed then
    return {-14, nonce}
  elseif taken_by then
    return {-15, nonce, kind, taken_by, left}
  end
end
if paused == 'in' or paused == 'all' then
  return {-4, nonce, paused}
end
local limit = tonumber(max_length)
if tonumber(bound) and (not limit or tonumber(bound) < limit) then
  limit = tonumber(bound)
end
local wake_empty = redis.call('LLEN', wake) == 0
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/results/keep_results
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/remove_expired
--@include lib/checks/is_duration
local delays, delay_ms = nil, 0
if is_duration(delay, 0) then
  delay_ms = delay + 0
else
  local malformed
  --@include lib/add/read_delays
  delays, delay_ms, malformed = read_delays(delay, raw)
  if malformed then
    return {-19, nonce, 'delay', malformed}
  end
end
