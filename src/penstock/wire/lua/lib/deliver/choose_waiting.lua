-- Choose up to n jobs that wait: those of scheduled that are due, which begin with the jobs with a priority, and those of
-- ready, merged by one time.
--- NEEDS  ready scheduled has_urgent delivered paused now done n expired
---        has_large_bodies keyed call sub allowed bytes cut dropped due exhausted kept_pairs most_parks page parks
---        passed record_size s screen skipped stays taken taken_counts taken_records took unpacked
--- SETS   bytes cut exhausted page parks passed skipped took
--- GIVES  from entries e
local waiting, w, place, latest = {}, 1, s and s <= now and 0, paused == 'in' and '(0' or now
local from = expired.trim_to
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
      if not expired.set[ids[i]] then
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
    page = parks > 0 and 100 or page -- many are parked: read larger pages
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
    if expired.has_more or keyed then
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
    if not expired.set[id] then
      if turned then
        expired.set[id] = true -- a page of waiting has it, too
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
  elseif entry and #waiting + #expired.ids + #done == 0 and not has_large_bodies and not keyed then -- usually: nothing to merge or to leave out
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
    local size = expired.set[cut] and #record or record_size(cut, record)
    if expired.set[cut] then
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
