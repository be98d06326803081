-- The steps of claim and publish: add the `asked` records in `given`, which carry dedup ids. Gives the reply.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake space
---        parked tickets
--- NEEDS  before nonce epoch given alarm bound create delay enqueued full last max_length mode off paused producer replicas
---        records role seen sweep_limit uses v wait
--- SETS   epoch alarm off uses
--- GIVES  reply
--@include lib/add/check_producer (gives: raw, now, created, change)
--@include lib/add/find_room (gives: limit, wake_empty, expired, remove_expired, write_dedup)
--@include lib/add/check_delay (gives: delays, delay_ms)
--@include lib/add/check_ttls
--@include lib/batches/check_open_batch
--@include lib/dedup/expired_windows (gives: close_windows)
--@include lib/add/split_body
--@include lib/dedup/decide_dedup
local refusal, decision = decide_dedup(given, mode, delays, delay_ms)
if refusal then
  return refusal
end
local list, room_needed, record_index = decision.all_free and given or decision.added, decision.room_needed, decision.record_index
local n = #list
if #given == 0 then
  --@include lib/checks/renew_role
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
elseif room_needed == 0 then -- the room remains
  limit = nil
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
--@include lib/add/assign_numbers (gives: first, final, ids, ttl_ends)
--@include lib/add/check_records (gives: has_policies, priorities, has_results, bodies)
--@include lib/add/place_jobs (gives: write_places)
--@include lib/dedup/write_decision
local checked = {priorities = priorities, bodies = bodies, ttl_ends = ttl_ends, has_policies = has_policies, has_results = has_results}
local soonest, token = write_decision(decision, given, checked, ids, delays, delay_ms)
priorities, has_policies, has_results = checked.priorities, checked.has_policies, checked.has_results
--@include lib/meta/use
if #decision.new_counters > 0 then
  use('counters')
end
if n > 0 then
  use('dedup')
end
if string.find(mode, 's', 1, true) then
  use('until_start')
end
--@include lib/deliver/announce
if soonest then
  token = soonest <= now or announce(soonest, false) or token
end
token = token and paused ~= 'out'
if n == 0 then
  first, final = '', last
end
local reply = {1, nonce, first, n, epoch, created, 0, delay_ms > 0 and 1 or 0, replicas}
--@include lib/dedup/append_answers
local told = append_answers(reply, decision, ids)
change('@' .. producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (delay_ms > 0 and ' 1 ' or ' 0 ') .. string.format('%.0f', raw) .. '\n' .. told)
--@include lib/add/note_features
--@include lib/add/note_added
remove_expired(expired)
close_windows()
local successor_due = write_dedup()
write_places()
-- Write the new owners after the releases above.
if #decision.dedup_pairs > 0 then
  redis.call('HSET', dedup, unpack(decision.dedup_pairs))
end
if #decision.window_pairs > 0 then
  redis.call('ZADD', windows, unpack(decision.window_pairs))
end
if successor_due and successor_due <= now and paused ~= 'out' then
  token = true
end
if token and wake_empty then
  redis.call('RPUSH', wake, '1')
end
if full > now and space_empty and (waiting + decision.room_needed < limit or #expired.ids > 0) then
  redis.call('RPUSH', space, '1')
end
