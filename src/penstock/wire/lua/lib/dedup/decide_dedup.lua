-- decide_dedup(given, mode, delays, delay_ms) decides on each record in `given`, whose dedup ids may be taken. Nothing is written. It
-- returns the refusal of a malformed record, or nil and the decision: all_free, if every id is free, and names, the ids; else
--   added (the records to add), and for each of them added_names (its id), added_due (0 = at once), record_index (its place in `given`)
--     and value_forms (what dedup gets: the number of the job takes the place of %s; nil = the number alone);
--   answers (place in `given`, {what, number, state, header}, ...; in place of a number that is not known yet the place in `added`);
--   rewritten (number -> new record; notes has those of their last deliveries), moved (number -> new due time), orphans (number of a
--     successor whose owner is gone -> due time), new_counters, dedup_pairs, window_pairs;
-- and room_needed, how many of the jobs to add need room.
--- KEYS   ready held active scheduled once tally expiry dedup windows parked
--- NEEDS  nonce end_of has_header is_duration is_lease keyed now uses
--- GIVES  decide_dedup header_of own_place
local function header_of(record) -- the part that a job's id needs
  return '1' .. (string.match(record, '^[1+](;l=%d+)') or '') .. (string.match(record, '^[1+][;l=%d]*(;t=%d+)') or '')
end
local function own_place(id) -- its creation, if it is due at once
  return math.min(now, tonumber(string.sub(id, 1, -12)))
end
local function decide_dedup(given, mode, delays, delay_ms)
  if #given > 1000 then
    return {-10, nonce, 1001}
  end
  redis.call('HLEN', held)
  local asked, names, owners, is_named, all_free = #given, {}, {}, {}, mode == ''
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
      elseif is_named[name] then
        all_free = false
      end
      names[i], is_named[name] = name, true
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
  local decision = {
    all_free = all_free, names = names, room_needed = all_free and asked or 0, dedup_pairs = {}, window_pairs = {}, record_index = {}, answers = {},
    rewritten = {}, moved = {}, orphans = {}, notes = {}, new_counters = {}, added = {}, added_names = {}, added_due = {}, value_forms = {},
  }
  if all_free then
    return nil, decision
  end
  --@include lib/dedup/find_job (gives: notes)
  decision.notes = notes
  --@include lib/dedup/merge_record
  local updates, restarts = string.find(mode, 'u', 1, true), string.find(mode, 'd', 1, true)
  local requeues, takes_windows = string.find(mode, 'q', 1, true), string.find(mode, 'e', 1, true)
  local added, added_names, added_due, value_forms = decision.added, decision.added_names, decision.added_due, decision.value_forms
  local answers, rewritten, moved, orphans, dedup_pairs = decision.answers, decision.rewritten, decision.moved, decision.orphans, decision.dedup_pairs
  local window_pairs, record_index = decision.window_pairs, decision.record_index
  local function add_waiting(due, value_form) -- the next of `added` waits for the end of a job (2^53 - 1) or of a window
    local at = #added + 1
    added_due[at], value_forms[at] = due, value_form
    return {3, at, due > now and 'scheduled' or 'ready', ''}
  end
  local due_text = delay_ms > 0 and string.format(' %.0f', now + delay_ms) or '' -- in dedup, behind the number of a successor
  local function rewrite(id, state, old, key, record, ends) -- ends: of the window for whose end it waits
    local content = merge_record(record, rewritten[id] or old)
    if not content then
      return {-2, id, state, header_of(old)}
    end
    rewritten[id] = content
    if key == scheduled and restarts then
      moved[id] = math.max(ends > now and ends or 0, delay_ms > 0 and now + delay_ms or own_place(id))
    elseif key == ready or key == parked and restarts and delay_ms > 0 then
      moved[id] = restarts and delay_ms > 0 and now + delay_ms or own_place(id)
    end
    if moved[id] then
      state = moved[id] > now and 'scheduled' or 'ready'
    end
    return {2, id, state, header_of(content)}
  end
  local later_answers = {} -- place in `added` of a successor -> answer to later records of this call with its id
  -- The reply says that a job whose lease has ended is ready. So this ends its delivery, and makes the holder's receipt
  -- stale. The job stays in active, and the next reserve counts the crash.
  --@include lib/return/end_delivery (gives: new_counters)
  decision.new_counters = new_counters
  local function decide(name, value, record) -- decides on a record whose id is taken
    local ends = tonumber(string.match(value, '@(%d+)$')) or 0
    local owner, successor, due_at = string.match(value, '^(%d+%-%d+) ?([%d-]*) ?(%d*)')
    local state, old, key, successor_state, successor_record
    if owner then
      state, old, key = find_job(owner)
    end
    if successor and successor ~= '' then
      successor_state, successor_record = find_job(successor)
    end
    if successor_state and not state then -- it has expired or was evicted: its successor is due
      local at = math.max(own_place(successor), tonumber(due_at) or 0)
      owner, state, old, key, successor_state = successor, at > now and 'scheduled' or 'ready', successor_record, scheduled, nil
      orphans[owner] = at
      dedup_pairs[#dedup_pairs + 1] = name
      dedup_pairs[#dedup_pairs + 1] = owner
    end
    local is_begun = owner and uses_any('notes') and redis.call('HEXISTS', tally, 'n' .. owner) == 1 -- its notes are of its arguments
    if key == active and state == 'ready' and not is_begun then
      end_delivery(owner)
    end
    local busy = state and is_begun or key == active and state == 'active' or key == once
    if successor_state and updates and (requeues or not busy) then -- the successor runs last
      local answer = rewrite(successor, successor_state, successor_record, nil, record)
      if restarts and answer[1] == 2 then
        dedup_pairs[#dedup_pairs + 1] = name
        dedup_pairs[#dedup_pairs + 1] = owner .. ' ' .. successor .. due_text
      end
      return answer
    elseif busy and requeues and not successor_state then
      later_answers[#added + 1] = {0, owner, state, header_of(old)}
      return add_waiting(9007199254740991, owner .. ' %s' .. due_text)
    elseif busy then
      return {0, owner, state, header_of(old)}
    elseif state and ends > now and not requeues then
      return {0, owner, 'window', header_of(old)}
    elseif state then
      return updates and rewrite(owner, state, old, key, record, ends) or {0, owner, state, header_of(old)}
    elseif ends > now then
      return requeues and add_waiting(math.max(ends, now + delay_ms), '%s @' .. string.format('%.0f', ends)) or
        {0, '', 'window', ''}
    end
  end
  local places, when = {}, delay_ms > 0 and now + delay_ms or 0 -- id -> place in `added`; when a job is due that waits for nothing else
  for i = 1, asked do
    local name, record = names[i], given[i]
    local answer, added_at = nil, places[name]
    if added_at then -- the id occurred earlier in this call
      if updates then
        added[added_at] = record
      end
      answer = {updates and 2 or 0, added_at, added_due[added_at] > now and 'scheduled' or 'ready', ''}
      if window_pairs[1] and value_forms[added_at] then -- no job has the id
        answer = {0, '', 'window', ''}
      elseif later_answers[added_at] and not updates then
        answer = later_answers[added_at]
      end
    else
      answer = owners[i] and decide(name, owners[i], record)
      if not answer or answer[1] == 3 then
        local at = #added + 1
        added[at], added_names[at], places[name], record_index[at] = record, name, at, i
        decision.room_needed = decision.room_needed + (answer and added_due[at] == 9007199254740991 and 0 or 1) -- a successor needs none
        if not answer then
          local own = delays and delays[i]
          added_due[at] = not own and when or own > 0 and now + own or 0
          local span = takes_windows and string.match(record, '^1[^\n]-;w=(%d+)')
          if span then -- the id is taken from now on, whatever happens to the job
            value_forms[at] = string.format('@%.0f', now + math.min(span, 3162240000000))
            window_pairs[#window_pairs + 1] = string.sub(value_forms[at], 2)
            window_pairs[#window_pairs + 1] = name
          end
        end
      end
    end
    if answer then
      answers[#answers + 1] = i
      answers[#answers + 1] = answer
    end
  end
  return nil, decision
end
