-- claim_records(given, producer, create, delay, bound, wait, role, mode, records) does the steps of claim and publish: it adds the records in
-- `given`, which carry dedup ids. `records` are those of them whose ttl has not been compared with the delay. It returns the reply, and true
-- if this call has added them: it was not refused, is no repeat, and has records. The other arguments are as in claim.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake space
---        parked tickets turns paces holds
--- NEEDS  before nonce epoch alarm enqueued full last max_length off paused replicas seen uses
--- SETS   epoch alarm uses
--- GIVES  claim_records
local function claim_records(given, producer, create, delay, bound, wait, role, mode, records)
  -- 1 check the producer and the arguments; 2 find what has expired or ended; 3 decide on each record; 4 check that there is room; 5 assign
  -- numbers, and check the new records; 6 write: the jobs, the fields of meta, then the ends of others, last the new owners of the ids.
  local sweep_limit = 100 + 2 * #given
  --@include lib/add/check_producer (gives: raw, now, created, change)
  --@include lib/add/find_limit_and_expired (gives: limit, wake_empty, expired, remove_expired, write_ends)
  --@include lib/add/check_delay (gives: delays, delay_ms)
  --@include lib/add/check_ttls
  --@include lib/batches/check_open_batch (gives: batch, keeps_values)
  --@include lib/dedup/expired_windows
  local _, close_windows = expired_windows(sweep_limit)
  --@include lib/add/split_body (gives: is_read)
  is_read = keeps_values(batch) == 1
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
    refusal, waiting, space_empty = check_capacity(limit, room_needed, expired)
    if refusal then
      return refusal
    end
  end
  --@include lib/add/assign_numbers (gives: ms, first, final, ids)
  --@include lib/add/check_records
  local features
  refusal, features = check_records(list, record_index, ids, ms)
  if refusal then
    return refusal
  end
  --@include lib/add/place_jobs (gives: write_places)
  --@include lib/dedup/write_decision
  local soonest, token = write_decision(decision, given, features, ids, delays, delay_ms)
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
  local successor_due = write_ends()
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
  return reply, true
end
