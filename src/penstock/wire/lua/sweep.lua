--- Free memory: remove expired jobs, old dead letters and results, ended windows, lost tickets, sparse stream nodes, and an unused empty queue.
--- KEYS     @queue
--- ARGV     nonce idle
---          idle   ms without a write after which an empty queue without settings is removed, at least 600000
--- BOUNDS   idle 600000 3162240000000
--- META     v epoch seen off uses paused full producer consumer surveyed
--- RETURNS  {1, nonce, expired, trimmed, more, removed, epoch}  more: 1 = call again; removed: epoch of the removed queue,
---                                        for its entry in the registry, else ''; epoch: of the queue that exists now,
---                                        '' = none
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--- FROM ready, scheduled, active, dead  TO none
--@include lib/checks/check_version
--@include lib/checks/check_damaged
if not epoch then
  return {1, nonce, 0, 0, 0, '', ''}
end
local quiet = seen
--@include lib/meta/now (gives: changes, raw)
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies (gives: bodies_left)
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup (gives: write_ends_and_wake)
local sweep_limit = 1000
--@include lib/dedup/expired_windows
local ended_windows, close_windows = expired_windows(sweep_limit)
--@include lib/results/keep_results
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/remove_expired
--@include lib/sweep/trim_dead
local trimmed, wants_room = redis.call('ZCARD', dead), full > now and redis.call('LLEN', space) == 0
redis.call('HLEN', tally)
redis.call('XLEN', ready)
redis.call('HDEL', held, '-')
if quiet > raw + 2592000000 then -- drop a wrong time, or the queue would never be idle
  redis.call('HSET', meta, unpack(changes))
end
remove_expired(expired)
close_windows()
trimmed = redis.call('ZCARD', dead) > 0 and trim_dead(sweep_limit) or 0
--@include lib/keyed/repair_tickets (gives: paces_dropped)
write_ends_and_wake()
local has_notes_left = false
if uses_any('notes') then
  --@include lib/finish/drop_notes
  has_notes_left = drop_notes({})
end
local dropped = 0
if uses_any('results') then
  --@include lib/results/drop_results
  dropped = drop_results(sweep_limit, 0, 0)
end
if uses_any('awaited') then
  local awaited_from = 4503599627370496
  --@include lib/results/drop_marks
  drop_marks(sweep_limit)
end
if wants_room and #expired.ids > 0 then
  redis.call('RPUSH', space, '1')
end
wake_after_ends()
--@include lib/sweep/move_sparse (gives: moved_jobs, moved_bytes)
local removed = ''
if #expired.ids + #expired.once + trimmed + dropped + #ended_windows == 0 then
  --@include lib/checks/time_left
  local function is_held(role)
    return time_left(string.match(role or '', '^%S+ (%d+) (%d+)')) > 0
  end
  local has_role = is_held(producer) or is_held(consumer)
  local settings = redis.call('HMGET', meta, 'paused', 'lease', 'max_length', 'max_attempts', 'max_crashes', 'max_releases',
    'max_snoozes', 'backoff_base', 'backoff_cap', 'unknown_age', 'dead_max', 'dead_age', 'replicas', 'closed', 'results_max', 'results_bytes',
    'result_size', 'result_ttl', 'rate', 'burst', 'key_burst', 'max_active', 'history')
  local key_limits = redis.call('HMGET', meta, 'per_key', 'ordered', 'share', 'key_rate')
  local limits_keys = key_limits[1] or key_limits[2] or key_limits[3] or key_limits[4]
  --@include lib/deliver/hold (gives: held_until)
  local stays = has_role or limits_keys or held_until or has_notes_left
  for i = 1, #settings do
    stays = stays or settings[i]
  end
  if not stays and now - quiet >= tonumber(idle) and redis.call('XLEN', ready) == 0 and redis.call('EXISTS', held, dedup, windows, schedules, tickets, holds) == 0 then
    redis.call('DEL', ready, active, scheduled, urgent, once, dead, tally, expiry, finished, members, batches, dedup, windows, meta, wake, space, parked, turns, paces, holds)
    removed = epoch
  else -- drop the letters of empty structures, and producers
    local sampled = 100
    --@include lib/sweep/drop_producers
    local kept = ''
    for letter in string.gmatch(uses, '%a') do
      local key = ({
        [letters('ttls')] = expiry, [letters('counters')] = tally, [letters('once')] = once, [letters('dedup')] = dedup,
        [letters('until_start')] = dedup, [letters('large_bodies')] = held, [letters('marks')] = tally, [letters('schedules')] = schedules,
        [letters('priorities')] = held, [letters('notes')] = tally, [letters('batches')] = batches, [letters('key_holds')] = holds
      })[letter]
      if letter == letters('roles') then
        kept = kept .. (has_role and letter or '')
      elseif letter == letters('holds') then
        kept = kept .. (held_until and letter or '')
      elseif letter == letters('results') then
        kept = kept .. ((redis.call('EXISTS', held) == 1 or redis.call('XLEN', ready) > 0) and letter or '')
      elseif letter == letters('tickets') then
        kept = kept .. ((limits_keys or redis.call('EXISTS', parked, tickets, holds) > 0) and letter or '')
      elseif not key or redis.call('EXISTS', key) == 1 or key == dedup and redis.call('EXISTS', windows) == 1
        or letter == letters('batches') and redis.call('EXISTS', members) == 1 or letter == letters('counters') and redis.call('EXISTS', batches) == 1 then
        kept = kept .. letter
      end
    end
    if #kept < #uses then
      redis.call('HSET', meta, 'uses', kept)
      if not string.find(kept, letters('tickets'), 1, true) then
        redis.call('HDEL', meta, 'recheck', 'walked')
      end
      if not held_until then
        redis.call('HDEL', meta, 'held_until')
      end
    end
  end
end
local most = math.max(#expired.ids, #expired.once, trimmed, dropped, #ended_windows, paces_dropped)
local more = (most >= sweep_limit or moved_jobs >= 1000 or moved_bytes >= 1048576 or bodies_left ~= '' or has_notes_left) and 1 or 0
return {1, nonce, #expired.ids + #expired.once, trimmed, more, removed, removed == '' and epoch or ''}
