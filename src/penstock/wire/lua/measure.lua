--- Note the history of a queue: the counters of the minute that has ended, if no call of this minute has, and the times of jobs that a worker has run.
--- KEYS     @queue
--- ARGV     nonce [handler waiting running...]
---          handler  name of a handler, '' = jobs without one
---          waiting, running  how many of its jobs took how long, see protocol/history.md: '' = none; else the number of the first bucket, and
---                  for it and each of the next ones a dot and how many there are, in base 36
--- META     v epoch seen off history=setting enqueued acked nacked crashed died
--- RETURNS  {1, nonce, now}               noted
---          {0, nonce}                    no such queue
---          {2, nonce}                    the queue keeps no history
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument: waiting or running; handler: more than 20 of them
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now
if not epoch then
  return {0, nonce}
elseif setting == '0' then
  redis.call('HDEL', held, '-')
  redis.call('UNLINK', history)
  return {2, nonce}
end
local digits = '0123456789abcdefghijklmnopqrstuvwxyz'
local function base36(number)
  local text = ''
  repeat
    local digit = number % 36
    text, number = string.sub(digits, digit + 1, digit + 1) .. text, (number - digit) / 36
  until number == 0
  return text
end
local function add_counts(counts, text) -- returns if the text has the form of counts
  local first, rest = string.match(text, '^([0-9a-d])(%.[%w.]+)$')
  local bucket = first and tonumber(first, 36) or 0
  for count in string.gmatch(rest or '', '%.([^.]*)') do
    bucket = bucket + 1
    if bucket > 14 or not string.find(count, '^%w%w?%w?%w?%w?%w?%w?$') then
      return false
    end
    counts[bucket] = (counts[bucket] or 0) + tonumber(count, 36)
  end
  return text == '' or first ~= nil
end
local function counts_text(counts)
  local first, last, text = 15, 0, ''
  for bucket = 1, 14 do
    if (counts[bucket] or 0) > 0 then
      first, last = math.min(first, bucket), bucket
    end
  end
  for bucket = first, last do
    text = text .. '.' .. base36(math.min(counts[bucket] or 0, 78364164095)) -- 7 digits
  end
  return last > 0 and base36(first - 1) .. text or ''
end
if #handlers > 60 then
  return {-19, nonce, 'handler', string.sub(handlers[61], 1, 200)}
end
local times = {} -- of each handler: waiting and running
for i = 1, #handlers, 3 do
  local waiting, running = {}, {}
  for place, counts in ipairs({waiting, running}) do
    local text = handlers[i + place]
    if not text or #text > 200 or not add_counts(counts, text) then
      return {-19, nonce, place == 1 and 'waiting' or 'running', string.sub(text or '', 1, 200)}
    end
  end
  times[#times + 1] = {':' .. handlers[i], waiting, running}
end
local minute = math.floor(now / 60000)
local slot = math.floor((minute - 1) / 10) -- the ten minutes of the minute that has ended
redis.call('HLEN', history)
redis.call('HDEL', held, '-')
-- Drop rows from before a number. Each row begins with its number and a comma.
local function rows_from(rows, oldest)
  for at, number in string.gmatch(rows, '()(%w+),%S+') do
    if tonumber(number, 36) >= oldest then
      return string.sub(rows, at)
    end
  end
  return ''
end
local function add_row(rows, row)
  return rows == '' and row or rows .. ' ' .. row
end
-- Return a row of `m` or `d`.
local function row_of(number, figures)
  local texts = {base36(number)}
  for i = 1, 5 do
    texts[i + 1] = base36(figures[i])
  end
  return table.concat(texts, ',')
end
-- Write the counters since the last call as the row of the minute that has ended, and add them to that of its ten minutes; return if the latter is new.
local function write_rows()
  local last, of_epoch, rest = string.match(redis.call('HGET', history, 'atm') or '', '^(%w+) (%w+) (.*)$')
  local is_late = last and tonumber(last, 36) > minute -- by a clock that was wrong
  if last and tonumber(last, 36) == minute then
    return false
  end
  local minutes, slots = redis.call('HGET', history, 'm') or '', redis.call('HGET', history, 'd') or ''
  if is_late then
    last, of_epoch, minutes, slots = nil, nil, '', ''
  end
  local totals = {tonumber(enqueued) or 0, tonumber(acked) or 0, (tonumber(nacked) or 0) + (tonumber(crashed) or 0), tonumber(died) or 0}
  local texts, figures, is_new = {}, {}, false
  local earlier = string.gmatch(of_epoch == epoch and rest or '', '%w+')
  for i = 1, 4 do
    texts[i] = base36(totals[i])
    figures[i] = math.max(0, totals[i] - tonumber(earlier() or '0', 36))
  end
  if last then
    figures[5] = redis.call('XLEN', ready) + redis.call('ZCOUNT', scheduled, '-inf', now)
    minutes = add_row(rows_from(minutes, minute - 120), row_of(minute - 1, figures))
    local before, number, counts = string.match(' ' .. slots, '^(.*) (%w+),([%w,]+)$')
    is_new = not number or tonumber(number, 36) ~= slot
    if not is_new then
      local add = string.gmatch(counts, '%w+')
      for i = 1, 4 do
        figures[i] = figures[i] + tonumber(add() or '0', 36)
      end
      slots = string.sub(before, 2)
    end
    slots = add_row(rows_from(slots, slot - 287), row_of(slot, figures))
  end
  if is_late then
    redis.call('UNLINK', history)
  end
  redis.call('HSET', history, 'atm', base36(minute) .. ' ' .. epoch .. ' ' .. table.concat(texts, ' '), 'm', minutes, 'd', slots)
  return is_new
end
if write_rows() and redis.call('HLEN', history) > 3 then -- forget handlers without jobs for two days
  for _, field in ipairs(redis.call('HKEYS', history)) do
    if string.find(field, '^n') and tonumber(string.match(redis.call('HGET', history, field), '^%w+') or '0', 36) < slot - 288 then
      redis.call('HDEL', history, field, 'h' .. string.sub(field, 2))
    end
  end
end
local merges_left = 64
-- Make rows shorter: add up the two neighbours that cover the least time, of those from before the last two hours. What is too much then is dropped.
local function shorten(text, most)
  local rows, numbers, bytes = {}, {}, #text
  for row in string.gmatch(text, '%S+') do
    rows[#rows + 1] = row
    numbers[#numbers + 1] = tonumber(string.match(row, '^%w+') or '0', 36)
  end
  while bytes > most and merges_left > 0 do
    local best, least = nil, math.huge
    for i = 1, #rows - 2 do
      if numbers[i + 2] > slot - 12 then
        break
      elseif numbers[i + 2] - numbers[i] < least then
        best, least = i, numbers[i + 2] - numbers[i]
      end
    end
    if not best then
      break
    end
    local waiting, running = {}, {}
    for i = best, best + 1 do
      local more_waiting, more_running = string.match(rows[i], '^%w+,([^,]*),([^,]*)$')
      add_counts(waiting, more_waiting)
      add_counts(running, more_running)
    end
    local merged = base36(numbers[best]) .. ',' .. counts_text(waiting) .. ',' .. counts_text(running)
    bytes, merges_left = bytes + #merged - #rows[best] - #rows[best + 1] - 1, merges_left - 1
    rows[best] = merged
    table.remove(rows, best + 1)
    table.remove(numbers, best + 1)
  end
  local first = 1
  while bytes > most and first < #rows do
    bytes, first = bytes - #rows[first] - 1, first + 1
  end
  return table.concat(rows, ' ', first)
end
for _, one in ipairs(times) do
  local name, waiting, running = one[1], one[2], one[3]
  local row = #name <= 101 and redis.call('HGET', history, 'n' .. name)
  if not row and (#name > 101 or redis.call('HLEN', history) >= 67) then -- it is one of the others
    name = ''
    row = redis.call('HGET', history, 'n')
  end
  local of_slot, more_waiting, more_running = string.match(row or '', '^(%w+),([^,]*),([^,]*)$')
  if of_slot and tonumber(of_slot, 36) == slot then
    add_counts(waiting, more_waiting)
    add_counts(running, more_running)
  elseif of_slot then
    local rows = add_row(rows_from(redis.call('HGET', history, 'h' .. name) or '', slot - 288), row)
    redis.call('HSET', history, 'h' .. name, shorten(rows, 40000 / math.max(2, redis.call('HLEN', history) - 3)))
  end
  if not row then
    redis.call('HSET', history, 'h' .. name, '')
  end
  redis.call('HSET', history, 'n' .. name, base36(slot) .. ',' .. counts_text(waiting) .. ',' .. counts_text(running))
end
redis.call('PEXPIRE', history, 173400000)
return {1, nonce, now}
