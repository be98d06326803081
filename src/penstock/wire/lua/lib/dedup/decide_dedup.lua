-- Decide on each of the `asked` records in `given`, whose dedup ids may be taken. Nothing is written.
-- Gives added (records to add, with added_due, 0 = at once, added_names and dedup_values), answers (for the reply),
-- rewritten (number -> new record) and moved (number -> new due time).
--- KEYS   ready held active scheduled once tally expiry dedup windows meta parked
--- NEEDS  nonce asked mode delay_ms delays given is_lease is_duration now end_of uses keyed
--- GIVES  split_body has_header result_ttl names all_free header_of added added_names added_due dedup_values answers rewritten
---        moved window_pairs orphans room_needed dedup_pairs record_index has_ttls new_counters notes own_place
--@include lib/add/split_body (gives: has_header)
if asked > 1000 then
  return {-10, nonce, 1001}
end
redis.call('HLEN', held)
local names, owners, latest, all_free = {}, {}, {}, mode == ''
do
  local match, sub, same_window = string.match, string.sub, ' ' -- the window of the record before, or the begin of another field
  for i = 1, asked do
    local record = given[i]
    local name, behind = match(record, '^1;d=([^;\n]+)()')
    if not name then
      name, behind = match(record, '^1[^\n]-;d=([^;\n]+)()')
    end
    if not name or not has_header(record) then
      return {-10, nonce, i}
    end
    local lease = match(record, '^1;l=([^;\n]*)')
    if lease and not is_lease(lease, 0) then
      return {-19, nonce, 'lease', sub(lease, 1, 200)}
    elseif latest[name] then
      all_free = false
    end
    names[i], latest[name] = name, i
    if sub(record, behind, behind + #same_window - 1) ~= same_window then
      local window = match(record, '^;w=([^;\n]*)', behind)
      if window and not is_duration(window, 1) then
        return {-19, nonce, 'window', sub(window, 1, 200)}
      end
      same_window = match(record, '^;w=%d+[;\n]', behind) or match(record, '^;?[^;w]', behind) or ' '
    end
  end
end
if keyed and keyed.is_ordered then
  --@include lib/add/priority_of
  for i = 1, asked do
    local priority = priority_of(given[i])
    if priority > 0 then
      return {-19, nonce, 'priority', string.format('%d', priority)}
    end
  end
end
if asked > 0 then
  owners = redis.call('HMGET', dedup, unpack(names))
end
for i = 1, all_free and asked or 0 do -- every id is free
  if owners[i] then
    all_free = false
    break
  end
end
if not all_free or delay_ms > 0 then -- else ready is written first, after all reads
  for _, index in ipairs({windows, scheduled, expiry, once, active}) do
    redis.call('ZCARD', index)
  end
  redis.call('XLEN', ready)
  redis.call('HLEN', tally)
end
--@include lib/dedup/find_job
local function header_of(record) -- the part that a job's id needs
  return '1' .. (string.match(record, '^[1+](;l=%d+)') or '') .. (string.match(record, '^[1+][;l=%d]*(;t=%d+)') or '')
end
--@include lib/dedup/merge_record
local updates, begins = string.find(mode, 'u', 1, true), string.find(mode, 'd', 1, true)
local requeues, framed = string.find(mode, 'q', 1, true), string.find(mode, 'e', 1, true)
local added, added_names, added_due, dedup_values, answers, rewritten, moved, window_pairs = {}, {}, {}, {}, {}, {}, {}, {}
local orphans, dedup_pairs, record_index, not_added = {}, {}, {}, {}
local room_needed = all_free and asked or 0 -- that the added jobs need; a successor needs none
local function add(what, due, value)
  local at = #added + 1
  added_due[at], dedup_values[at] = due, value
  return {what, at, due > now and 'scheduled' or 'ready', ''}
end
local function own_place(id) -- its creation, if it is due at once
  return math.min(now, tonumber(string.sub(id, 1, -12)))
end
local due_text = delay_ms > 0 and string.format(' %.0f', now + delay_ms) or '' -- in dedup, behind the number of a successor
local function rewrite(id, state, old, key, record, ends) -- ends: of the window for whose end it waits
  local content = merge_record(record, rewritten[id] or old)
  if not content then
    return {-2, id, state, header_of(old)}
  end
  rewritten[id] = content
  if key == scheduled and begins then
    moved[id] = math.max(ends > now and ends or 0, delay_ms > 0 and now + delay_ms or own_place(id))
  elseif key == ready or key == parked and begins and delay_ms > 0 then
    moved[id] = begins and delay_ms > 0 and now + delay_ms or own_place(id)
  end
  if moved[id] then
    state = moved[id] > now and 'scheduled' or 'ready'
  end
  return {2, id, state, header_of(content)}
end
local when = delay_ms > 0 and now + delay_ms or 0
-- The reply says that a job whose lease has ended is ready. So this ends its delivery, and makes the holder's receipt
-- stale. The job stays in active, and the next reserve counts the crash.
--@include lib/return/end_delivery
local function decide(name, value, record) -- decides on a record whose id is taken
  local ends = tonumber(string.match(value, '@(%d+)$')) or 0
  local owner, successor, wait = string.match(value, '^(%d+%-%d+) ?([%d-]*) ?(%d*)')
  local state, old, key, waits, successor_record
  if owner then
    state, old, key = find_job(owner)
  end
  if successor and successor ~= '' then
    waits, successor_record = find_job(successor)
  end
  if waits and not state then -- it has expired or was evicted: its successor is due
    local at = math.max(own_place(successor), tonumber(wait) or 0)
    owner, state, old, key, waits = successor, at > now and 'scheduled' or 'ready', successor_record, scheduled, nil
    orphans[owner] = at
    dedup_pairs[#dedup_pairs + 1] = name
    dedup_pairs[#dedup_pairs + 1] = owner
  end
  if key == active and state == 'ready' then
    end_delivery(owner)
  end
  local busy = key == active and state == 'active' or key == once
  if waits and updates and (requeues or not busy) then -- the successor runs last
    local item = rewrite(successor, waits, successor_record, nil, record)
    if begins and item[1] == 2 then
      dedup_pairs[#dedup_pairs + 1] = name
      dedup_pairs[#dedup_pairs + 1] = owner .. ' ' .. successor .. due_text
    end
    return item
  elseif busy and requeues and not waits then
    not_added[#added + 1] = {0, owner, state, header_of(old)}
    return add(3, 9007199254740991, owner .. ' %s' .. due_text)
  elseif busy then
    return {0, owner, state, header_of(old)}
  elseif state and ends > now and not requeues then
    return {0, owner, 'window', header_of(old)}
  elseif state then
    return updates and rewrite(owner, state, old, key, record, ends) or {0, owner, state, header_of(old)}
  elseif ends > now then
    return requeues and add(3, math.max(ends, now + delay_ms), '%s @' .. string.format('%.0f', ends)) or
      {0, '', 'window', ''}
  end
end
latest = {}
for i = 1, all_free and 0 or asked do
  local name, record = names[i], given[i]
  local item, again = nil, latest[name]
  if again then -- the id occurred earlier in this call
    if updates then
      added[again] = record
    end
    item = {updates and 2 or 0, again, added_due[again] > now and 'scheduled' or 'ready', ''}
    if window_pairs[1] and dedup_values[again] then -- no job has the id
      item = {0, '', 'window', ''}
    elseif not_added[again] and not updates then
      item = not_added[again]
    end
  else
    item = owners[i] and decide(name, owners[i], record)
    if not item or item[1] == 3 then
      local at = #added + 1
      added[at], added_names[at], latest[name], record_index[at] = record, name, at, i
      room_needed = room_needed + (item and added_due[at] == 9007199254740991 and 0 or 1)
      if not item then
        local own = delays and delays[i]
        added_due[at] = not own and when or own > 0 and now + own or 0
        local span = framed and string.match(record, '^1[^\n]-;w=(%d+)')
        if span then -- the id is taken from now on, whatever happens to the job
          dedup_values[at] = string.format('@%.0f', now + math.min(span, 3162240000000))
          window_pairs[#window_pairs + 1] = string.sub(dedup_values[at], 2)
          window_pairs[#window_pairs + 1] = name
        end
      end
    end
  end
  if item then
    answers[#answers + 1] = i
    answers[#answers + 1] = item
  end
end
