-- choose_jobs(n, expired, done, all_valid) returns a delivery of at most n jobs. Nothing is written but the places of due jobs with
-- a priority (see raise_urgent). The order: 1. ended leases; 2. jobs with a priority, the highest first; 3. due jobs and the head of
-- ready, merged by one time (due time, or creation), ties by number. Only 1 goes on when max_active has no slots. So that low
-- priorities do not starve, each 16th delivery of the queue passes over jobs with a priority above k, if it finds others; k goes 0, 1,
-- ... 8, and begins again (protocol/priorities.md, Order). With a rate for each key, three of four are parked jobs of keys whose time has
-- come, before 2. Parked and expired candidates are left out. About 100 of the
-- expired ones are added to `expired` if find_expired has reached its limit. `done` end in this same call; all of them are first
-- deliveries if all_valid. For next_event it notes first_end and first_due, the first times of active and scheduled; is_changed, if this call
-- may change them; has_read_all, if no job is left in ready.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished dedup windows meta wake space parked tickets
---        turns
--- NEEDS  free_slots has_urgent delivered paused now end_of uses score_of release_dedup keyed nothing
--- GIVES  choose_jobs join_body record_size
--@include lib/read/join_body
--@include lib/deliver/new_delivery
local function choose_jobs(n, expired, done, all_valid)
  local call, delivery = redis.call, new_delivery()
  if paused then -- check the types of keys that nothing below reads
    call('ZCARD', active)
    call('XLEN', ready)
  end
  if paused == 'out' or paused == 'all' then
    return delivery
  end
  --@include lib/read/read_job
  --@include lib/deliver/screen
  if n > 0 and has_urgent and not paused then
    --@include lib/deliver/raise_urgent
    raise_urgent()
  end
  local first_end, first_due = nil, nil
  if paused ~= 'in' then
    first_end = call('ZRANGE', active, '0', '0', 'WITHSCORES')[2]
    first_end = first_end and end_of(first_end)
    first_due = tonumber(call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')[2])
  elseif has_urgent then -- jobs with a priority that are ready
    first_due = tonumber(call('ZRANGE', scheduled, '-inf', '(0', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2])
  end
  local has_ended, has_due = first_end and first_end <= now, first_due and first_due <= now
  local is_changed = has_ended or has_due or first_end and #done > 0 and first_end - now <= 4000
  delivery.first_end, delivery.first_due, delivery.is_changed = first_end, first_due, is_changed
  local leaves_out, listed = #expired.ids > 0, #expired.ids
  if #done > 0 and (is_changed or not all_valid) then
    leaves_out = true
    for i = 1, #done do
      expired.left_out[done[i]] = true -- left out as the expired ones are, but not removed as such
    end
  end
  if keyed then
    keyed.recheck_limit = n + 100
  end
  local search = {
    n = n,
    page = math.min(100, n + listed + #done), -- entries that are read at once
    most_unusable = math.max(100, 1000 - listed), -- most jobs that end, have expired or have no record
    has_due = has_due, -- jobs of scheduled are due
    leaves_out = leaves_out, -- expired jobs, or jobs that end in this call, may be in ready
    bytes = 0, unusable = 0, undelivered = 0, -- of the jobs so far; undelivered: those that were read and are not delivered
  }
  if n > 0 and has_ended then
    --@include lib/deliver/choose_ended
    choose_ended(delivery, expired, search)
  end
  local slots = n > 0 and free_slots()
  if slots then -- no more jobs that wait than the slots which are free, or become so in this call
    --@include lib/deliver/count_freed
    search.n = math.min(n, #delivery.ids + math.max(0, slots + count_freed(delivery, expired, done)))
  end
  --@include lib/deliver/choose_waiting
  local fill_by_turns = nothing
  if keyed and keyed.has_turns and not paused and #delivery.ids < search.n then
    --@include lib/keyed/take_turns
    fill_by_turns = take_turns
  end
  if keyed and keyed.pace then -- keys whose time has come are first; each fourth job is another one, if others wait
    local others_wait = has_due or call('XLEN', ready) > 0
    local others = others_wait and math.floor((delivered + search.n) / 4) - math.floor((delivered + #delivery.ids) / 4) or 0
    fill_by_turns(delivery, expired, search, search.n - others)
  end
  choose_waiting(delivery, expired, search)
  fill_by_turns(delivery, expired, search, search.n)
  if #expired.ids > listed then
    release_dedup({unpack(expired.ids, listed + 1)}, false)
  end
  return delivery
end
