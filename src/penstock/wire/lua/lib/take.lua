-- Choose what reserve delivers; nothing is written here. Ended leases first, then due jobs and the head of ready
-- merged by one key (due time or creation ms, ties by number). Needs n, and of the jobs that this same call finishes: settlings (how many), all, finished, base.
-- Gives numbers, records, counts ('' = first delivery) in order of delivery, and what else has to be written.
--@include lib/terms
--@include lib/limit
local numbers, records, counts = {}, {}, {}
local due, cut, dropped, fallen, crashes = {}, nil, {}, {}, 0
local more, soonest = false, false
local head, first, reread, exhausted, entries_left = {}, {}, false, false, 0
local delivers = paused ~= 'out' and paused ~= 'all'
--@include lib/closed
local asleep, hungry = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
if delivers and #lapsed == 100 then
  more, delivers = true, false
end
if delivers then
  local call, sub = redis.call, string.sub
  local took, bytes = 0, 0
  if paused ~= 'in' then
    head, first = call('ZRANGE', active, 0, 0, 'WITHSCORES'), call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')
  end
  local a, s = head[2] and math.floor(head[2] / 4096), tonumber(first[2])
  reread = a and (a <= now or settlings > 0 and a - now <= 4000) or s and s <= now
  if settlings > 0 and (reread or not all) then -- they are not there any more
    for i = 1, settlings do
      lapse[all and ARGV[base + i - 1] or finished[i]] = true
    end
  end
  local counted = string.find(uses, 'r', 1, true)
  local function unpacked(id) -- the record without the note of its last delivery, its counters, and the value with the note
    local value = call('HGET', held, id)
    local record = value
    if value and string.byte(value) == 64 then
      record = sub(value, (string.find(value, '\n', 1, true) or 0) + 1)
    end
    return record, counted and call('HGET', tally, id) or nil, value
  end
  if n > 0 and a and a <= now then
    local over = call('ZRANGE', active, '-inf', now * 4096 + 4095, 'BYSCORE', 'LIMIT', 0, n + #lapsed + settlings + 16)
    local policy = call('HMGET', meta, 'max_attempts', 'max_crashes')
    local max_attempts, max_crashes = limit(policy[1], 20), limit(policy[2], 3)
    --@include lib/crash
    for i = 1, #over do
      local id = over[i]
      if took == n or bytes >= 1048576 then
        break
      elseif not lapse[id] then
        local record, count, value = unpacked(id)
        if not record then
          dropped[#dropped + 1] = id
        else
          local after, dies = crash(count, record, value)
          crashes, bytes = crashes + 1, bytes + #record
          if dies then
            fallen[#fallen + 1] = id
            fallen[#fallen + 1] = after
          else
            took = took + 1
            numbers[took], records[took], counts[took] = id, record, after
          end
        end
      end
    end
  end
  local waiting, w = {}, 1
  if n > took and s and s <= now then
    waiting = call('ZRANGE', scheduled, '-inf', now, 'BYSCORE', 'LIMIT', 0, n + #lapsed + settlings, 'WITHSCORES')
  end
  local from = '-'
  local entries, e = {}, 1
  while took < n and bytes < 1048576 do
    if e > #entries and not exhausted then
      -- One, then 16, then up to 100 as their size lets the call carry: it delivers about 1 MiB.
      local step = 1
      if took > 0 then
        step = math.max(1, math.floor((1048576 - bytes) * took / (bytes + 1)))
        step = math.min(step, n - took, took < 16 and 16 or 100)
      end
      entries, e = call('XRANGE', ready, from, '+', 'COUNT', step), 1
      exhausted = #entries < step
      if #entries > 0 then
        local last = entries[#entries][1]
        from = sub(last, 1, -11) .. string.format('%.0f', sub(last, -10) + 1)
      end
    end
    local entry, id = entries[e], waiting[w]
    if id and entry then
      local own, at = tonumber(sub(entry[1], 1, -12)), tonumber(waiting[w + 1])
      if own < at or own == at and entry[1] < id then
        id = nil
      end
    end
    if id then
      w = w + 2
      if not lapse[id] then
        due[#due + 1] = id
        local record, count = unpacked(id)
        if not record then
          dropped[#dropped + 1] = id
        else
          took, bytes = took + 1, bytes + #record
          numbers[took], records[took], counts[took] = id, record, ''
          if count then
            local d, rest = string.match(count, '^(%d+) (.*)$')
            -- a number with a plus has been set aside for this delivery
            counts[took] = d and d + 1 .. ' ' .. rest or string.gsub(count, '%+', '', 1)
          end
        end
      end
    elseif entry and #waiting + #lapsed + settlings == 0 then -- the usual case: nothing to merge or leave out
      for i = e, #entries do
        local job = entries[i]
        local record = job[2][2]
        took, e = took + 1, i + 1
        numbers[took], records[took], counts[took] = job[1], record, ''
        bytes = bytes + #record
        if bytes >= 1048576 then
          break
        end
      end
      cut = numbers[took]
    elseif entry then
      e = e + 1
      cut = entry[1]
      if not lapse[cut] then
        took = took + 1
        numbers[took], records[took], counts[took] = cut, entry[2][2], ''
        bytes = bytes + #entry[2][2]
      end
    else
      break
    end
  end
  entries_left = #entries - e + 1
end
