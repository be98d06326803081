--- Read a page of the jobs of a state, in order, from a place on. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce part from count newest body
---          part    ready in three parts: ended (leases), due and ready; or scheduled, parked (by key), active, once, dead
---          from    '' = from the first job; else from behind a place, the cursor of a reply
---          count   1 to 1000: the most jobs to look at; the call reads about 1 MiB, and at least one job
---          newest  1 = from the end backwards, else 0
---          body    0 to 1000: the most bytes of each body; of a large body there are none
--- BOUNDS   count 1 1000  body 0 1000
--- META     v epoch seen off lease uses
--- RETURNS  {1, nonce, now, lease, epoch, cursor, looked, job...}  cursor: from of the next page, '' = this is the last;
---                                        looked: number of jobs looked at; job as in show, with the start of its body, and
---                                        behind its marks only why a parked job waits. Jobs whose ttl has ended are left out
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument: from
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: score_of, end_of)
--@include lib/checks/is_number
--@include lib/read/job_fields
--@include lib/read/tell_wait
--@include lib/read/rank_after
local index = ({ended = active, due = scheduled, scheduled = scheduled, parked = parked, active = active, once = once, dead = dead})[part]
local place_score, place_id = string.match(from, index and '^(%-?%d+) (%S+)$' or '^()(%S+)$')
if from ~= '' and not (place_id and is_number(place_id)) then
  return {-19, nonce, 'from', string.sub(from, 1, 200)}
end
local jobs, looked, bytes, most = {}, 0, 0, tonumber(count)
local backwards = newest == '1'
local function stream_page(n) -- {number, score, record}...
  local rows, bound = {}, backwards and '+' or '-'
  if place_id then
    bound = string.sub(place_id, 1, -11) .. string.format('%.0f', string.sub(place_id, -10) + (backwards and -1 or 1))
  end
  local entries = backwards and redis.call('XREVRANGE', ready, bound, '-', 'COUNT', n)
    or redis.call('XRANGE', ready, bound, '+', 'COUNT', n)
  for i = 1, #entries do
    rows[i] = {entries[i][1], string.sub(entries[i][1], 1, -12), entries[i][2][2]}
  end
  return rows
end
local function ranks() -- the first and the last rank of the part, behind the place
  local low, high = 0, redis.call('ZCARD', index) - 1
  if part ~= 'dead' and part ~= 'parked' then
    local edge = (index == scheduled) and now or score_of(now, 4095)
    local past = redis.call('ZCOUNT', index, '-inf', string.format('%.0f', edge))
    if part == 'ended' or part == 'due' then
      high = past - 1
    else
      low = past
    end
  end
  if place_id then
    local rank = rank_after(index, place_score, place_id)
    if backwards then
      local is_there = rank > 0 and redis.call('ZRANGE', index, rank - 1, rank - 1)[1] == place_id
      high = math.min(high, rank - (is_there and 2 or 1))
    else
      low = math.max(low, rank)
    end
  end
  return low, high
end
local function sorted_page(n)
  local rows, ids, low, high = {}, {}, ranks()
  if low > high then
    return rows
  end
  local first = backwards and math.max(low, high - n + 1) or low
  local page = redis.call('ZRANGE', index, first, math.min(high, first + n - 1), 'WITHSCORES')
  for i = 1, #page, 2 do
    local at = backwards and (#page - i + 1) / 2 or (i + 1) / 2
    rows[at], ids[at] = {page[i], page[i + 1]}, page[i]
  end
  local values = redis.call('HMGET', held, unpack(ids))
  for i = 1, #rows do
    rows[i][3] = values[i]
  end
  return rows
end
local function see(id, score, value)
  local at = index and index ~= scheduled and index ~= dead and end_of(score) or score
  at = part == 'parked' and string.sub(id, 1, -12) or at
  local job = job_fields(id, (part == 'ended' or part == 'due') and 'ready' or part, at, value)
  if job[2] ~= 'expired' then
    if part == 'parked' then
      tell_wait(job)
    end
    local record = job[7]
    local head = string.find(record, '\n', 1, true) or 0
    local is_large = string.byte(record) == 43
    job[7] = (is_large and '1' or string.sub(record, 1, 1)) .. string.sub(record, 2, head + (is_large and 0 or body))
    jobs[#jobs + 1] = job
  end
end
local over = false
while not over and looked < most and bytes < 1048576 do
  local size = looked > 0 and bytes / looked or 1048575
  local n = math.max(1, math.min(most - looked, math.floor((1048576 - bytes) / (size + 1)), 100))
  local rows = (index and sorted_page or stream_page)(n)
  for i = 1, #rows do
    local id, score, value = rows[i][1], rows[i][2], rows[i][3]
    looked, place_id, place_score = looked + 1, id, score
    if value then -- else an index entry whose record is gone
      bytes = bytes + #value
      see(id, score, value)
    end
  end
  over = #rows < n
end
local cursor = over and '' or index and place_score .. ' ' .. place_id or place_id
return {1, nonce, now, lease, epoch or '', cursor, looked, unpack(jobs)}
