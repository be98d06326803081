-- Write the decisions of decide_dedup and build the reply.
--- KEYS   ready held scheduled urgent tally expiry members batches dedup windows meta wake space parked
--- NEEDS  delays keyed nonce orphans has_ttls ttl_ends all_free n ids raw before dedup_pairs names split_body given bodies
---        added_names dedup_values added_due added rewritten notes has_policies has_results priorities result_ttl moved
---        own_place has_urgent drop_bodies new_counters mode now paused first final last epoch created delay_ms replicas
---        answers header_of producer remove_expired close_windows write_dedup window_pairs wake_empty full space_empty waiting
---        room_needed limit expired alarm change changes enqueued uses batch
--- SETS   has_policies has_results priorities first final alarm uses
--- GIVES  reply
--@include lib/add/priority_of
--@include lib/add/place_jobs (gives: place, write_places)
local soonest, token = nil, false
do
  local ends_of, held_pairs, leave_ready, later = {}, {}, {}, {}
  local function place_by_ttl(id, at, priority) -- not later than the end of its ttl
    local ends = has_ttls and tonumber(redis.call('ZSCORE', expiry, id))
    local when = ends and math.min(ends, at) or at
    soonest = math.min(soonest or when, when)
    place(id, string.format('%.0f', when), priority)
    if when > now then
      later[#later + 1] = id
    end
  end
  for id, at in pairs(orphans) do
    if not rewritten[id] then
      place_by_ttl(id, at, has_urgent and (redis.call('ZSCORE', urgent, id) or 0) % 16 or 0)
    end
  end
  for i = 2, ttl_ends and #ttl_ends or 0, 2 do
    ends_of[ttl_ends[i]] = tonumber(ttl_ends[i - 1])
  end
  do
    local function add_held(id, record, at, priority)
      held_pairs[#held_pairs + 1] = id
      held_pairs[#held_pairs + 1] = split_body(id, record, bodies)
      place(id, string.format('%.0f', at), priority)
    end
    local function add_new(id, record, due, priority) -- due: 0 = at once
      if due > 0 then
        local when = due < 9007199254740991 and math.min(due, ends_of[id] or due) or due
        soonest = math.min(soonest or when, when)
        return add_held(id, record, when, priority)
      end
      token = true
      if priority > 0 then
        return add_held(id, record, own_place(id), priority)
      end
      redis.call('XADD', ready, id, 'j', split_body(id, record, bodies))
    end
    if all_free then
      local usual = delay_ms <= 0 and not priorities
      token = usual
      for i = 1, n do
        local id = ids[i]
        dedup_pairs[i * 2 - 1], dedup_pairs[i * 2] = names[i], id
        if usual then
          redis.call('XADD', ready, id, 'j', split_body(id, given[i], bodies))
        else
          local own = delays and delays[i] or delay_ms
          add_new(id, given[i], own > 0 and now + own or 0, priorities and priorities[i] or 0)
        end
      end
    end
    for i = 1, all_free and 0 or n do
      dedup_pairs[#dedup_pairs + 1] = added_names[i]
      dedup_pairs[#dedup_pairs + 1] = dedup_values[i] and string.format(dedup_values[i], ids[i]) or ids[i]
      add_new(ids[i], added[i], added_due[i], priorities and priorities[i] or 0)
    end
  end
  local without_large_body = {} -- ids whose new body is small
  for id, content in pairs(rewritten) do
    held_pairs[#held_pairs + 1] = id
    local size = #bodies
    held_pairs[#held_pairs + 1] = notes[id] .. split_body(id, content, bodies)
    if #bodies == size then
      without_large_body[#without_large_body + 1] = id
    end
    has_policies = has_policies or string.find(string.match(content, '^[^\n]*'), ';p=', 1, true)
    has_results = has_results or string.find(string.match(content, '^[^\n]*'), ';k=', 1, true)
    local priority = priority_of(content)
    priorities = priorities or priority > 0 and {} or nil
    if moved[id] or orphans[id] then
      leave_ready[#leave_ready + 1] = id
      place_by_ttl(id, moved[id] or orphans[id], priority)
    elseif priority > 0 or has_urgent then -- perhaps not its priority so far
      local score = tonumber(redis.call('ZSCORE', scheduled, id))
      if score then
        place(id, string.format('%.0f', score < 0 and score % 4398046511104 or score), priority)
      end
    end
  end
  if #held_pairs > 0 then
    redis.call('HSET', held, unpack(held_pairs))
  end
  if #bodies > 0 then
    redis.call('HSET', held, unpack(bodies))
  end
  drop_bodies(without_large_body)
  if #leave_ready > 0 then
    redis.call('XDEL', ready, unpack(leave_ready))
  end
  if keyed and #leave_ready > 0 then
    redis.call('ZREM', parked, unpack(leave_ready))
    keyed.postpone(later)
  end
  if #new_counters > 0 then
    redis.call('HSET', tally, unpack(new_counters))
  end
end
--@include lib/meta/use
if #new_counters > 0 then
  use('counters')
end
if n > 0 then
  use('dedup')
end
if string.find(mode, 's', 1, true) then
  use('until_start')
end
--@include lib/deliver/announce
if soonest then
  token = soonest <= now or announce(soonest, false) or token
end
token = token and paused ~= 'out'
if n == 0 then
  first, final = '', last
end
local reply = {1, nonce, first, n, epoch, created, 0, delay_ms > 0 and 1 or 0, replicas}
do
  local told = {} -- as the note of the producer has it
  for i = 1, #answers, 2 do
    local what, id, state, header = unpack(answers[i + 1])
    if tonumber(id) then -- an index into the added jobs
      id, header = ids[id], header_of(added[id])
    end
    told[#told + 1] = answers[i] .. ' ' .. what .. ' ' .. id .. ' ' .. state .. ' ' .. header .. '\n'
    local j = #reply
    reply[j + 1], reply[j + 2], reply[j + 3], reply[j + 4], reply[j + 5] = answers[i], what, id, state, header
  end
  change('@' .. producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (delay_ms > 0 and ' 1 ' or ' 0 ') .. string.format('%.0f', raw) .. '\n' .. table.concat(told))
end
--@include lib/add/note_added
remove_expired(expired)
close_windows()
local successor_due = write_dedup()
write_places()
-- Write the new owners after the releases above.
if #dedup_pairs > 0 then
  redis.call('HSET', dedup, unpack(dedup_pairs))
end
if #window_pairs > 0 then
  redis.call('ZADD', windows, unpack(window_pairs))
end
if successor_due and successor_due <= now and paused ~= 'out' then
  token = true
end
if token and wake_empty then
  redis.call('RPUSH', wake, '1')
end
if full > now and space_empty and (waiting + room_needed < limit or #expired.ids > 0) then
  redis.call('RPUSH', space, '1')
end
