-- choose_waiting(delivery, expired, search) adds jobs that wait, up to search.n in all: those of scheduled that are due, which begin with
-- the jobs with a priority, and those of ready, merged by one time; with limits per key each fourth job that the queue delivers by number
-- (protocol/keys.md, Turns). It stops after most_unusable jobs that have expired or have no record; bytes, unusable and undelivered of `search`
-- are those of the jobs before (see choose_jobs). It writes search.bytes, and notes cut and has_read_all in the delivery.
--- KEYS   ready scheduled
--- NEEDS  has_urgent delivered paused now uses keyed record_size read_job screen
--- GIVES  choose_waiting count_delivery
local function every_second(pairs)
  local firsts = {}
  for i = 1, #pairs, 2 do
    firsts[#firsts + 1] = pairs[i]
  end
  return firsts
end
local function first_from(lowest, latest_due, expired) -- the first waiting job from this score on; nil = none; its score; how many have expired
  local unusable = 0
  for offset = 0, 900, 100 do
    local page = redis.call('ZRANGE', scheduled, string.format('%.0f', lowest), latest_due, 'BYSCORE', 'LIMIT', offset, 100, 'WITHSCORES')
    local candidates = every_second(page)
    unusable = unusable + screen(candidates, expired)
    for i = 1, #candidates do
      if not expired.left_out[candidates[i]] then
        return candidates[i], page[i * 2], unusable
      end
    end
    if #candidates < 100 then
      break
    end
  end
  return nil, nil, unusable
end
local function count_delivery(count) -- the counters of a job with its next delivery
  local d, rest = string.match(count, '^(%d+) (.*)$')
  -- a number with a plus was set aside for this delivery
  return d and d + 1 .. ' ' .. rest or string.gsub(count, '%+', '', 1)
end
local function choose_waiting(delivery, expired, search)
  local n, page, most_unusable, leaves_out = search.n, search.page, search.most_unusable, search.leaves_out
  local bytes, unusable, undelivered = search.bytes, search.unusable, search.undelivered
  local call, sub, has_large_bodies = redis.call, string.sub, uses_any('large_bodies')
  local ids, records, counts = delivery.ids, delivery.records, delivery.counts
  local due, dropped, kept_pairs = delivery.due, delivery.dropped, delivery.kept_pairs
  local took, parked_count, most_to_park = #ids, 0, math.max(n + 100, 1000)
  local below_zero = '(0' -- the scores of jobs with a priority that are ready: a pause for consumers leaves these
  local waiting, next_waiting, offset, latest_due = {}, 1, search.has_due and 0, paused == 'in' and below_zero or now
  local entries, next_entry, first_unread, exhausted, cut = {}, 1, expired.trim_to, false, nil
  while took < n and bytes < 1048576 and unusable < most_unusable do
    if parked_count == most_to_park then
      if not offset and next_waiting > #waiting then
        break
      end
      waiting, next_waiting, offset, parked_count = {}, 1, nil, 0 -- go on with ready
    end
    if next_waiting > #waiting and offset then
      page = parked_count > 0 and 100 or page -- many are parked: read larger pages
      waiting, next_waiting = call('ZRANGE', scheduled, '-inf', latest_due, 'BYSCORE', 'LIMIT', offset, page, 'WITHSCORES'), 1
      offset = #waiting == page * 2 and offset + page
      unusable = unusable + screen(every_second(waiting), expired)
    end
    if next_entry > #entries and not exhausted then
      -- Read one entry, then 16, then up to 100, as their sizes allow: a call delivers about 1 MiB.
      local step, read_count = 1, took + undelivered
      if read_count > 0 then
        step = math.max(1, math.floor((1048576 - bytes) * read_count / (bytes + 1)))
        step = math.min(step, math.max(n - took, undelivered), read_count < 16 and 16 or 100)
      end
      entries, next_entry = call('XRANGE', ready, first_unread, '+', 'COUNT', step == 1 and '1' or step), 1 -- texts are quicker than numbers
      exhausted = #entries < step
      if #entries > 0 then
        local last = entries[#entries][1]
        first_unread = sub(last, 1, -11) .. string.format('%.0f', sub(last, -10) + 1)
      end
      if expired.has_more or keyed then
        local candidates = {}
        for i = 1, #entries do
          candidates[i] = entries[i][1]
        end
        unusable = unusable + screen(candidates, expired)
      end
    end
    local entry, id, waiting_at = entries[next_entry], waiting[next_waiting], waiting[next_waiting + 1]
    local early_job = nil -- a job that comes before those with a higher priority, as this is its turn
    if has_urgent and id and (delivered + took) % 16 == 15 then
      local lowest = (delivered + took - 15) / 16 % 9 * -4398046511104
      if tonumber(waiting_at) < lowest then
        local early_at, added
        early_job, early_at, added = first_from(lowest, latest_due, expired)
        unusable = unusable + added
        if early_job or entry then
          id, waiting_at = early_job, early_at
        end
      end
    end
    if id and entry then
      local own = tonumber(sub(entry[1], 1, -12))
      waiting_at = tonumber(waiting_at)
      if keyed and (delivered + took) % 4 == 3 then -- by number: an admitted job is due late
        waiting_at = math.min(waiting_at, own)
      end
      if own < waiting_at or own == waiting_at and entry[1] < id then
        id = nil
      end
    end
    if id then
      next_waiting = early_job and next_waiting or next_waiting + 2
      if not expired.left_out[id] then
        if early_job then
          expired.left_out[id] = true -- a page of waiting has it, too
        end
        due[#due + 1] = id
        local record, size, count = read_job(id)
        if not record then
          dropped[#dropped + 1] = id
          unusable = unusable + 1
        elseif keyed and not keyed.take(id, record, 'waiting') then
          parked_count, bytes = parked_count + 1, bytes + #record
        else
          took, bytes = took + 1, bytes + size
          ids[took], records[took], counts[took] = id, record, count and count_delivery(count) or ''
        end
      end
    elseif entry and not leaves_out and #waiting == 0 and not has_large_bodies and not keyed then -- usually: nothing to merge or to leave out
      for i = next_entry, #entries do
        local job = entries[i]
        local record = job[2][2]
        took, next_entry = took + 1, i + 1
        ids[took], records[took], counts[took] = job[1], record, ''
        bytes = bytes + #record
        if bytes >= 1048576 or took == n then
          break
        end
      end
      cut = ids[took]
    elseif entry then
      next_entry = next_entry + 1
      cut = entry[1]
      local record = entry[2][2]
      local size = expired.left_out[cut] and #record or record_size(cut, record)
      if expired.left_out[cut] then
        bytes, undelivered = bytes + size, undelivered + 1
      elseif not size then
        dropped[#dropped + 1] = cut
        unusable = unusable + 1
      elseif keyed and not keyed.take(cut, record, 'waiting') then
        parked_count, bytes, undelivered = parked_count + 1, bytes + #record, undelivered + 1
        kept_pairs[#kept_pairs + 1], kept_pairs[#kept_pairs + 2] = cut, record
      else
        took, bytes = took + 1, bytes + size
        ids[took], records[took], counts[took] = cut, record, ''
      end
    else
      break
    end
  end
  if first_unread == '-' then
    call('XLEN', ready) -- check its type
  end
  search.bytes = bytes
  delivery.cut, delivery.has_read_all = cut, exhausted and next_entry > #entries
end
