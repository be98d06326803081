-- write_decision(decision, given, features, ids, delays, delay_ms) writes the records of a decision: `ids` are the numbers of those that
-- are added, `features` what check_records has found. It returns when the first job is due that must wait, and if one can be delivered.
--- KEYS   ready held scheduled urgent tally expiry
--- NEEDS  now drop_bodies has_urgent keyed own_place place split_body uses
--- GIVES  write_decision
--@include lib/add/priority_of
local function write_decision(decision, given, features, ids, delays, delay_ms)
  local soonest, token, ends_of, held_pairs, leave_ready, later = nil, false, {}, {}, {}, {}
  local has_ttls, rewritten, moved, orphans, dedup_pairs = uses_any('ttls'), decision.rewritten, decision.moved, decision.orphans, decision.dedup_pairs
  local priorities, bodies, ttl_ends = features.priorities, features.bodies, features.ttl_ends
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
    local n, names = #ids, decision.names
    if decision.all_free then
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
    local added, added_due, added_names, value_forms = decision.added, decision.added_due, decision.added_names, decision.value_forms
    for i = 1, #added do
      dedup_pairs[#dedup_pairs + 1] = added_names[i]
      dedup_pairs[#dedup_pairs + 1] = value_forms[i] and string.format(value_forms[i], ids[i]) or ids[i]
      add_new(ids[i], added[i], added_due[i], priorities and priorities[i] or 0)
    end
  end
  local without_large_body = {} -- ids whose new body is small
  for id, content in pairs(rewritten) do
    held_pairs[#held_pairs + 1] = id
    local size = #bodies
    held_pairs[#held_pairs + 1] = decision.notes[id] .. split_body(id, content, bodies)
    if #bodies == size then
      without_large_body[#without_large_body + 1] = id
    end
    features.has_policies = features.has_policies or string.find(string.match(content, '^[^\n]*'), ';p=', 1, true)
    features.has_results = features.has_results or string.find(string.match(content, '^[^\n]*'), ';k=', 1, true)
    local priority = priority_of(content)
    features.priorities = features.priorities or priority > 0 and {} or nil
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
    keyed.unpark(leave_ready)
    keyed.postpone(later)
  end
  if #decision.new_counters > 0 then
    redis.call('HSET', tally, unpack(decision.new_counters))
  end
  return soonest, token
end
