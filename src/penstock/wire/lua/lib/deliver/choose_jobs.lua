-- Choose the jobs to deliver. Nothing is written but the places of due jobs with a priority (see raise_urgent).
-- The order: ended leases; jobs with a priority, the highest first; then due jobs and the head of ready, merged by one time
-- (due time, or creation), ties by number. Each 16th job that the queue delivers is one of at most the priority 0, 1, ... 8 in
-- turn, if there is one (protocol/priorities.md, Order). Parked and expired candidates are left out. About 100 of the expired
-- ones are added to `expired` if find_expired has reached its limit.
-- `done` end in this same call; all of them are first deliveries if all_valid.
-- Gives the jobs in order of delivery: taken, taken_records and taken_counts ('' = first delivery). Gives lists of the other
-- changes: due (taken from scheduled), cut (the last number taken from ready), kept_pairs (jobs of ready that are parked),
-- put_back (those of active), dropped (entries without a record), dying, cancelled, and marks.
--- NEEDS  allowance ready held active scheduled urgent has_urgent once dead dedup windows finished delivered tally
---        expiry meta wake space paused full now end_of done all_valid uses n expired
---        score_of has_large_bodies release_dedup nothing keyed parked
--- GIVES  join_body cancelled marks taken taken_records taken_counts due cut dropped dying crashes more soonest head
---        first reread exhausted entries_left delivers wake_empty wants_room is_drained lease_and_ttl lease_span
---        kept_pairs put_back
--@include lib/read/join_body (gives: record_size)
--@include lib/deliver/lease_terms
--@include lib/meta/limit_of
local taken, taken_records, taken_counts = {}, {}, {}
local due, cut, dropped, dying, crashes, cancelled, marks = {}, nil, {}, {}, 0, {}, {}
local kept_pairs, put_back = {}, {}
local more, soonest = false, false
local head, first, reread, exhausted, entries_left = {}, {}, false, false, 0
local delivers = paused ~= 'out' and paused ~= 'all'
--@include lib/deliver/wake_drained
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
if not delivers or paused == 'in' then -- check the types of keys that nothing below reads
  redis.call('ZCARD', active)
  redis.call('XLEN', ready)
end
if delivers then
  local call, sub = redis.call, string.sub
  local took, bytes, passed, skipped = 0, 0, 0, 0
  local n = math.min(n, allowance or n)
  if n > 0 then
    --@include lib/deliver/raise_urgent
  end
  if paused ~= 'in' then
    head, first = call('ZRANGE', active, '0', '0', 'WITHSCORES'), call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')
  elseif has_urgent then -- jobs with a priority that are ready
    first = call('ZRANGE', scheduled, '-inf', '(0', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
  end
  local a, s = head[2] and end_of(head[2]), tonumber(first[2])
  reread = a and (a <= now or #done > 0 and a - now <= 4000) or s and s <= now
  if #done > 0 and (reread or not all_valid) then -- leave them out
    for i = 1, #done do
      expired.set[done[i]] = true
    end
  end
  local has_counters = uses_any('counters')
  local function unpacked(id) -- the record, its size, its counters, and the value: the record with the note of its last delivery
    local value = call('HGET', held, id)
    local record = value
    if value and string.byte(value) == 64 then
      record = sub(value, (string.find(value, '\n', 1, true) or 0) + 1)
    end
    local size = record and record_size(id, record)
    return size and record, size, has_counters and call('HGET', tally, id) or nil, value
  end
  local found, page, allowed = {}, math.min(100, n + #expired.ids + #done), math.max(100, 1000 - #expired.ids)
  local parks, most_parks = 0, math.max(n + 100, 1000)
  local function stays(id, record) -- parks a job without a ticket
    if keyed.take(id, record) then
      return false
    end
    parks, bytes = parks + 1, bytes + #record
    return true
  end
  local function screen(ids) -- note which candidates have expired, and which have tickets
    if keyed then
      keyed.read(ids)
    end
    local ends = expired.has_more and #ids > 0 and call('ZMSCORE', expiry, unpack(ids)) or {}
    for i = 1, #ends do
      if ends[i] and tonumber(ends[i]) <= now and not expired.set[ids[i]] then
        expired.set[ids[i]] = true
        found[#found + 1] = ids[i]
        passed = passed + 1
      end
    end
  end
  if keyed then
    keyed.recheck_limit = n + 100
  end
  --@include lib/deliver/choose_ended
  --@include lib/deliver/choose_waiting (gives: from, entries, e)
  if from == '-' then
    call('XLEN', ready) -- check its type
  end
  entries_left = #entries - e + 1
  release_dedup(found, false)
  for i = 1, #found do
    expired.ids[#expired.ids + 1] = found[i]
    expired.others[#expired.others + 1] = found[i]
  end
end
