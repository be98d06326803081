--- Read a page of the jobs in one structure, in its order, between two places. No job changes.
--- KEYS     @queue
--- ARGV     nonce wanted place from to count full
---          wanted  epoch that the first page answered; '' = not checked
---          place   ready, scheduled, parked, active, once or dead: the structure, including due jobs and ended leases
---          from    '' = from the first job; else after this place: in ready a number, elsewhere score, a blank, number
---          to      '' = to the last job; else up to this place
---          count   1 to 1000; a reply has about 1 MiB, and at least one job
---          full    2 = with their bodies; 1 = with the note of the last delivery and the header of the record; 0 = without
--- BOUNDS   count 1 1000
--- META     v epoch uses seen off surveyed
--- RETURNS  {1, nonce, now, epoch, cursor, jobs: (number, value)...}  of ready. cursor: from of the next page, '' = this is the last;
---                                        value: note, record. Jobs whose ttl has ended are left out
---          {1, nonce, now, epoch, cursor, jobs: (number, score, counters, value)...}  of the others. score: as in the index;
---                                        counters: '' = none
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: place, from or to
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: end_of)
--@include lib/checks/is_number
local has_ttls, has_counters = uses_any('ttls'), uses_any('counters')
local index = ({scheduled = scheduled, parked = parked, active = active, once = once, dead = dead})[place]
if place ~= 'ready' and not index then
  return {-19, nonce, 'place', string.sub(place, 1, 200)}
end
local function is_bound(text)
  return text == '' or index and string.find(text, '^%-?%d+ %S+$') or not index and is_number(text)
end
if not is_bound(from) then
  return {-19, nonce, 'from', string.sub(from, 1, 200)}
end
if not is_bound(to) then
  return {-19, nonce, 'to', string.sub(to, 1, 200)}
end
local reply = {1, nonce, now, epoch or '', ''}
count = tonumber(count)
--@include lib/read/append_rows (gives: bytes, at, visible_part)
local function ends_of(ids)
  return has_ttls and place ~= 'dead' and #ids > 0 and redis.call('ZMSCORE', expiry, unpack(ids)) or {}
end
--@include lib/read/number_after
local function stream()
  local first, looked, over = '-', 0, false
  if from ~= '' then
    first = number_after(from)
  end
  while not over and looked < count and bytes < 1048576 do
    local step = looked == 0 and 1 or math.min(100, math.floor((1048576 - bytes) * looked / (bytes + 1)) + 1)
    step = math.min(step, count - looked)
    local entries, ids = redis.call('XRANGE', ready, first, to == '' and '+' or to, 'COUNT', step), {}
    over = #entries < step
    for i = 1, has_ttls and #entries or 0 do
      ids[i] = entries[i][1]
    end
    local ends = ends_of(ids)
    looked = looked + #entries
    local last = #entries
    for i = 1, #entries do
      local entry = entries[i]
      if bytes >= 1048576 then
        last, over = i - 1, false
        break
      end
      if not (ends[i] and tonumber(ends[i]) <= now) then
        local value, text = entry[2][2], visible_part(entry[1], entry[2][2])
        if text then
          reply[at + 1], reply[at + 2] = entry[1], text
          at, bytes = at + 2, bytes + math.max(#value, #text)
        end
      end
    end
    if not over then
      reply[5] = entries[last][1]
      first = number_after(reply[5])
    end
  end
  reply[5] = over and '' or reply[5]
end
--@include lib/read/rank_after
local function sorted()
  local score, id = string.match(from, '^(%S+) (%S+)$')
  local last_score, last_id = string.match(to, '^(%S+) (%S+)$')
  local rank = score and rank_after(index, score, id) or 0
  local page = redis.call('ZRANGE', index, rank, rank + count - 1, 'WITHSCORES')
  local ids, scores, over = {}, {}, #page < count * 2
  last_score = tonumber(last_score) or math.huge
  for i = 1, #page, 2 do
    local at = tonumber(page[i + 1])
    if at > last_score or at == last_score and page[i] > last_id then
      over = true
      break
    end
    ids[#ids + 1], scores[#scores + 1] = page[i], page[i + 1]
  end
  local ends = ends_of(ids)
  local kept, kept_scores, places = {}, {}, {}
  for i = 1, #ids do
    if not (ends[i] and tonumber(ends[i]) <= now or place == 'once' and end_of(scores[i]) <= now) then
      local at = #kept + 1
      kept[at], kept_scores[at], places[at] = ids[i], scores[i], i
    end
  end
  local passed = append_rows(kept, kept_scores, has_counters and #kept > 0 and redis.call('HMGET', tally, unpack(kept)) or {})
  local seen_to = passed < #kept and places[passed + 1] - 1 or #ids
  if not over or seen_to < #ids then
    reply[5] = scores[seen_to] .. ' ' .. ids[seen_to]
  end
end
if index then
  sorted()
else
  stream()
end
if epoch and now - surveyed >= 10000 then -- sweep moves no jobs between structures while they are read
  redis.call('HDEL', held, '-')
  redis.call('HSET', meta, 'surveyed', now)
end
return reply
