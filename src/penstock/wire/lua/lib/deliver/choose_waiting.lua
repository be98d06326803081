-- choose_waiting(delivery, n, expired, page, most_passed, bytes, skipped, leaves_out, has_due) adds jobs that wait, up to n in all: those
-- of scheduled that are due, which begin with the jobs with a priority, and those of ready, merged by one time. It stops after
-- most_passed jobs that have expired or have no record. `page` is how many entries of scheduled it reads at once; bytes and skipped:
-- those of the jobs before; leaves_out: expired jobs, or jobs that end in this call, may be among those of ready; has_due: so are
-- there any in scheduled. It notes cut and has_read_all in the delivery.
--- KEYS   ready scheduled
--- NEEDS  has_urgent delivered paused now uses keyed record_size read_job screen
--- GIVES  choose_waiting
local function every_second(pairs)
  local found = {}
  for i = 1, #pairs, 2 do
    found[#found + 1] = pairs[i]
  end
  return found
end
local function first_from(lowest, latest, expired) -- the first waiting job from this score on; nil = none; its score; how many have expired
  local passed = 0
  for looked = 0, 900, 100 do
    local found = redis.call('ZRANGE', scheduled, string.format('%.0f', lowest), latest, 'BYSCORE', 'LIMIT', looked, 100, 'WITHSCORES')
    local candidates = every_second(found)
    passed = passed + screen(candidates, expired)
    for i = 1, #candidates do
      if not expired.set[candidates[i]] then
        return candidates[i], found[i * 2], passed
      end
    end
    if #candidates < 100 then
      break
    end
  end
  return nil, nil, passed
end
local function choose_waiting(delivery, n, expired, page, most_passed, bytes, skipped, leaves_out, has_due)
  local call, sub, has_large_bodies = redis.call, string.sub, uses_any('large_bodies')
  local ids, records, counts = delivery.ids, delivery.records, delivery.counts
  local due, dropped, kept_pairs = delivery.due, delivery.dropped, delivery.kept_pairs
  local took, passed, parks, most_parks = #ids, 0, 0, math.max(n + 100, 1000)
  local waiting, w, place, latest = {}, 1, has_due and 0, paused == 'in' and '(0' or now
  local entries, e, from, exhausted, cut = {}, 1, expired.trim_to, false, nil
  while took < n and bytes < 1048576 and passed < most_passed do
    if parks == most_parks then
      if not place and w > #waiting then
        break
      end
      waiting, w, place, parks = {}, 1, nil, 0 -- go on with ready
    end
    if w > #waiting and place then
      page = parks > 0 and 100 or page -- many are parked: read larger pages
      waiting, w = call('ZRANGE', scheduled, '-inf', latest, 'BYSCORE', 'LIMIT', place, page, 'WITHSCORES'), 1
      place = #waiting == page * 2 and place + page
      passed = passed + screen(every_second(waiting), expired)
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
      if expired.has_more or keyed then
        local candidates = {}
        for i = 1, #entries do
          candidates[i] = entries[i][1]
        end
        passed = passed + screen(candidates, expired)
      end
    end
    local entry, id, at = entries[e], waiting[w], waiting[w + 1]
    local turned = nil -- a job that comes before those with a higher priority, as this is its turn
    if has_urgent and id and (delivered + took) % 16 == 15 then
      local lowest = (delivered + took - 15) / 16 % 9 * -4398046511104
      if tonumber(at) < lowest then
        local turned_at, added
        turned, turned_at, added = first_from(lowest, latest, expired)
        passed = passed + added
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
      if not expired.set[id] then
        if turned then
          expired.set[id] = true -- a page of waiting has it, too
        end
        due[#due + 1] = id
        local record, size, count = read_job(id)
        if not record then
          dropped[#dropped + 1] = id
          passed = passed + 1
        elseif keyed and not keyed.take(id, record) then
          parks, bytes = parks + 1, bytes + #record
        else
          took, bytes = took + 1, bytes + size
          ids[took], records[took], counts[took] = id, record, ''
          if count then
            local d, rest = string.match(count, '^(%d+) (.*)$')
            -- a number with a plus was set aside for this delivery
            counts[took] = d and d + 1 .. ' ' .. rest or string.gsub(count, '%+', '', 1)
          end
        end
      end
    elseif entry and not leaves_out and #waiting == 0 and not has_large_bodies and not keyed then -- usually: nothing to merge or to leave out
      for i = e, #entries do
        local job = entries[i]
        local record = job[2][2]
        took, e = took + 1, i + 1
        ids[took], records[took], counts[took] = job[1], record, ''
        bytes = bytes + #record
        if bytes >= 1048576 or took == n then
          break
        end
      end
      cut = ids[took]
    elseif entry then
      e = e + 1
      cut = entry[1]
      local record = entry[2][2]
      local size = expired.set[cut] and #record or record_size(cut, record)
      if expired.set[cut] then
        bytes, skipped = bytes + size, skipped + 1
      elseif not size then
        dropped[#dropped + 1] = cut
        passed = passed + 1
      elseif keyed and not keyed.take(cut, record) then
        parks, bytes, skipped = parks + 1, bytes + #record, skipped + 1
        kept_pairs[#kept_pairs + 1], kept_pairs[#kept_pairs + 2] = cut, record
      else
        took, bytes = took + 1, bytes + size
        ids[took], records[took], counts[took] = cut, record, ''
      end
    else
      break
    end
  end
  if from == '-' then
    call('XLEN', ready) -- check its type
  end
  delivery.cut, delivery.has_read_all = cut, exhausted and e > #entries
end
