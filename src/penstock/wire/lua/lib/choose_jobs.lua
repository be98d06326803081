-- Choose the jobs to deliver. Nothing is written but the places of due jobs with a priority. Ended leases come first, then
-- jobs with a priority, the highest first, then due jobs and the head of ready, merged by one key: due time or creation ms,
-- ties by number. Each 16th job that the queue delivers is one of at most the priority 0, 1, ... 8 in turn, if there is one. `done` (all of them first deliveries if all_valid)
-- end in this same call. Gives taken, taken_records and taken_counts ('' = first delivery) in order of delivery, and
-- lists of the other changes: kept_pairs are jobs of ready that are parked, put_back those of active. Expired candidates are left out. About 100 of them are added to expired if
-- lib/find_expired has reached its limit.
--- NEEDS  allowance ready held active scheduled urgent has_urgent once dead dedup windows finished delivered tally expiry meta wake space paused full now end_of done all_valid expired_set
---        uses n expired more_expired score_of trim_to has_large_bodies release_dedup other_expired nothing keyed parked
--- GIVES  join_body cancelled marks taken taken_records taken_counts due cut dropped dying crashes more soonest head first reread
---        exhausted entries_left delivers wake_empty wants_room is_drained lease_and_ttl lease_span kept_pairs put_back
--@include lib/join_body (gives: record_size)
--@include lib/lease_terms
--@include lib/limit
local taken, taken_records, taken_counts = {}, {}, {}
local due, cut, dropped, dying, crashes, cancelled, marks = {}, nil, {}, {}, 0, {}, {}
local kept_pairs, put_back = {}, {}
local more, soonest = false, false
local head, first, reread, exhausted, entries_left = {}, {}, false, false, 0
local delivers = paused ~= 'out' and paused ~= 'all'
--@include lib/check_closed
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
    --@include lib/raise_urgent
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
      expired_set[done[i]] = true
    end
  end
  local has_counters = string.find(uses, 'r', 1, true)
  local function unpacked(id) -- the record, its size, its counters, and the value: the record with the note of its last delivery
    local value = call('HGET', held, id)
    local record = value
    if value and string.byte(value) == 64 then
      record = sub(value, (string.find(value, '\n', 1, true) or 0) + 1)
    end
    local size = record and record_size(id, record)
    return size and record, size, has_counters and call('HGET', tally, id) or nil, value
  end
  local found, page, allowed = {}, math.min(100, n + #expired + #done), math.max(100, 1000 - #expired)
  local parks, most_parks = 0, n + 100
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
    local ends = more_expired and #ids > 0 and call('ZMSCORE', expiry, unpack(ids)) or {}
    for i = 1, #ends do
      if ends[i] and tonumber(ends[i]) <= now and not expired_set[ids[i]] then
        expired_set[ids[i]] = true
        found[#found + 1] = ids[i]
        passed = passed + 1
      end
    end
  end
  if n > 0 and a and a <= now then
    local high, at, over = string.format('%.0f', score_of(now, 4095)), 0, nil
    local policy = call('HMGET', meta, 'max_attempts', 'max_crashes')
    local max_attempts, max_crashes = limit(policy[1], 20), limit(policy[2], 3)
    --@include lib/count_crash
    --@include lib/describe_failure
    local has_marks = string.find(uses, 'm', 1, true)
    repeat
      over = call('ZRANGE', active, '-inf', high, 'BYSCORE', 'LIMIT', at, page)
      at = at + page
      screen(over)
      for i = 1, #over do
        local id = over[i]
        if took == n or bytes >= 1048576 or parks == most_parks then
          break
        elseif not expired_set[id] then
          local record, size, count, value = unpacked(id)
          if not record then
            dropped[#dropped + 1] = id
            passed = passed + 1
          elseif has_marks and call('HEXISTS', tally, 'c' .. id) == 1 then
            cancelled[#cancelled + 1] = id
            passed, skipped = passed + 1, skipped + 1
          else
            local after, dies, crashed = count_crash(count, record, value)
            crashes, bytes = crashes + crashed, bytes + size
            if crashed > 0 then
              marks[#marks + 1] = 'e' .. id
              marks[#marks + 1] = describe_failure(id, value, 'lease ended', '')
            end
            if dies then
              dying[#dying + 1] = id
              dying[#dying + 1] = after
              passed, skipped = passed + 1, skipped + 1
            elseif keyed and stays(id, record) then -- it was delivered before the queue got its limit
              put_back[#put_back + 1] = id
              put_back[#put_back + 1] = string.gsub(after, '^%d+', '%0+')
            else
              took = took + 1
              taken[took], taken_records[took], taken_counts[took] = id, record, after
            end
          end
        end
      end
    until #over < page or took == n or bytes >= 1048576 or passed >= allowed or parks == most_parks
    parks = 0
  end
  local waiting, w, place, latest = {}, 1, s and s <= now and 0, paused == 'in' and '(0' or now
  local from = trim_to
  local entries, e = {}, 1
  local function first_from(lowest) -- the first waiting job from this score on, and its score; nil = none
    for looked = 0, 900, 100 do
      local page = call('ZRANGE', scheduled, string.format('%.0f', lowest), latest, 'BYSCORE', 'LIMIT', looked, 100, 'WITHSCORES')
      local ids = {}
      for i = 1, #page, 2 do
        ids[#ids + 1] = page[i]
      end
      screen(ids)
      for i = 1, #ids do
        if not expired_set[ids[i]] then
          return ids[i], page[i * 2]
        end
      end
      if #ids < 100 then
        return
      end
    end
  end
  while took < n and bytes < 1048576 and passed < allowed do
    if parks == most_parks then
      if not place and w > #waiting then
        break
      end
      waiting, w, place, parks = {}, 1, nil, 0 -- go on with ready
    end
    if w > #waiting and place then
      waiting, w = call('ZRANGE', scheduled, '-inf', latest, 'BYSCORE', 'LIMIT', place, page, 'WITHSCORES'), 1
      place = #waiting == page * 2 and place + page
      local ids = {}
      for i = 1, #waiting, 2 do
        ids[#ids + 1] = waiting[i]
      end
      screen(ids)
    end
    if e > #entries and not exhausted then
      -- Read one entry, then 16, then up to 100, as their sizes allow: a call delivers about 1 MiB.
      local step, looked = 1, took + skipped
      if looked > 0 then
        step = math.max(1, math.floor((1048576 - bytes) * looked / (bytes + 1)))
        step = math.min(step, math.max(n - took, skipped), looked < 16 and 16 or 100)
      end
      entries, e = call('XRANGE', ready, from, '+', 'COUNT', step == 1 and '1' or step), 1 -- texts are quicker than numbers
      exhausted = #entries < step
      if #entries > 0 then
        local last = entries[#entries][1]
        from = sub(last, 1, -11) .. string.format('%.0f', sub(last, -10) + 1)
      end
      if more_expired or keyed then
        local ids = {}
        for i = 1, #entries do
          ids[i] = entries[i][1]
        end
        screen(ids)
      end
    end
    local entry, id, at = entries[e], waiting[w], waiting[w + 1]
    local turned = nil -- a job that comes before those with a higher priority, as this is its turn
    if has_urgent and id and (delivered + took) % 16 == 15 then
      local lowest = (delivered + took - 15) / 16 % 9 * -4398046511104
      if tonumber(at) < lowest then
        local turned_at
        turned, turned_at = first_from(lowest)
        if turned or entry then
          id, at = turned, turned_at
        end
      end
    end
    if id and entry then
      local own = tonumber(sub(entry[1], 1, -12))
      at = tonumber(at)
      if own < at or own == at and entry[1] < id then
        id = nil
      end
    end
    if id then
      w = turned and w or w + 2
      if not expired_set[id] then
        if turned then
          expired_set[id] = true -- a page of waiting has it, too
        end
        due[#due + 1] = id
        local record, size, count = unpacked(id)
        if not record then
          dropped[#dropped + 1] = id
          passed = passed + 1
        elseif not (keyed and stays(id, record)) then
          took, bytes = took + 1, bytes + size
          taken[took], taken_records[took], taken_counts[took] = id, record, ''
          if count then
            local d, rest = string.match(count, '^(%d+) (.*)$')
            -- a number with a plus was set aside for this delivery
            taken_counts[took] = d and d + 1 .. ' ' .. rest or string.gsub(count, '%+', '', 1)
          end
        end
      end
    elseif entry and #waiting + #expired + #done == 0 and not has_large_bodies and not keyed then -- usually: nothing to merge or to leave out
      for i = e, #entries do
        local job = entries[i]
        local record = job[2][2]
        took, e = took + 1, i + 1
        taken[took], taken_records[took], taken_counts[took] = job[1], record, ''
        bytes = bytes + #record
        if bytes >= 1048576 or took == n then
          break
        end
      end
      cut = taken[took]
    elseif entry then
      e = e + 1
      cut = entry[1]
      local record = entry[2][2]
      local size = expired_set[cut] and #record or record_size(cut, record)
      if expired_set[cut] then
        bytes, skipped = bytes + size, skipped + 1
      elseif not size then
        dropped[#dropped + 1] = cut
        passed = passed + 1
      elseif keyed and stays(cut, record) then
        skipped = skipped + 1
        kept_pairs[#kept_pairs + 1], kept_pairs[#kept_pairs + 2] = cut, record
      else
        took, bytes = took + 1, bytes + size
        taken[took], taken_records[took], taken_counts[took] = cut, record, ''
      end
    else
      break
    end
  end
  if from == '-' then
    call('XLEN', ready) -- its type
  end
  entries_left = #entries - e + 1
  release_dedup(found, false)
  for i = 1, #found do
    expired[#expired + 1] = found[i]
    other_expired[#other_expired + 1] = found[i]
  end
end
