-- What becomes of each of the `asked` records in `given`, whose dedup ids may be taken. Nothing is written.
--- NEEDS  ready held active scheduled once tally expiry dedup windows nonce asked mode later given is_lease uses now
---        end_of
--- GIVES  apart names notes usual headed mortal header_of fresh whose dues forms items rewritten moved frames orphans
---        marks origins recount
--@include lib/apart
-- Who has each id, and where is it?
if asked > 1000 then
  return {-10, nonce, 1001}
end
redis.call('HLEN', held)
local names, owners, latest, notes, usual = {}, {}, {}, {}, mode == '' and later <= 0
local match = string.match
for i = 1, asked do
  local record = given[i]
  local name = match(record, '^1;d=([^;\n]+)') or match(record, '^1[^\n]-;d=([^;\n]+)')
  if not name or not headed(record) then
    return {-10, nonce, i}
  end
  local lease = match(record, '^1;l=([^;\n]*)')
  if lease and not is_lease(lease, 0) then
    return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
  elseif latest[name] then
    usual = false
  end
  names[i], latest[name] = name, i
end
if asked > 0 then
  owners = redis.call('HMGET', dedup, unpack(names))
end
for i = 1, usual and asked or 0 do -- usual: every id is free, and no job has to wait
  if owners[i] then
    usual = false
    break
  end
end
if not usual then -- the first write of a usual call is to ready, and what it reads it has read by then
  for _, index in ipairs({windows, scheduled, expiry, once, active}) do
    redis.call('ZCARD', index)
  end
  redis.call('XLEN', ready)
  redis.call('HLEN', tally)
end
local mortal, places = string.find(uses, 't', 1, true), {}
local function looked_up(id) -- state, record, key; nil = it is not there any more, or its ttl has ended
  local ends = mortal and redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    return nil
  end
  local entry = redis.call('XRANGE', ready, id, id)[1]
  if entry then
    notes[id] = ''
    return 'ready', entry[2][2], ready
  end
  local value = redis.call('HGET', held, id)
  if not value then
    return nil
  end
  local note, record = string.match(value, '^(@[^\n]*\n)(.*)$')
  notes[id], record = note or '', record or value
  local score = redis.call('ZSCORE', active, id)
  if score then
    return end_of(score) > now and 'active' or 'ready', record, active
  end
  score = redis.call('ZSCORE', scheduled, id)
  if score then
    return tonumber(score) > now and 'scheduled' or 'ready', record, scheduled
  end
  score = redis.call('ZSCORE', once, id)
  if score and end_of(score) > now then
    return 'once', record, once
  end
end
local function place_of(id) -- the same, read once a call
  places[id] = places[id] or {looked_up(id)}
  return places[id][1], places[id][2], places[id][3]
end
local function header_of(record) -- as much of it as a job's id needs
  return '1' .. (string.match(record, '^[1+](;l=%d+)') or '') .. (string.match(record, '^[1+][;l=%d]*(;t=%d+)') or '')
end
local function merged(record, old) -- the new content under the old ttl; the old lease, policy and window unless they are given
  local lease, was = string.match(record, '^1;l=(%d+)'), string.match(old, '^[1+];l=(%d+)')
  if lease and (lease == '0') ~= (was == '0') then
    return nil
  end
  local ttl = string.match(old, '^[1+][;l=%d]*;t=(%d+)')
  lease = lease or was
  local own, was_own = string.match(record, '^1[;lt=%d]*(;p=[^;\n]*)'), string.match(old, '^[1+][;lt=%d]*(;p=[^;\n]*)')
  local name, rest = string.match(record, '^1[^\n]-;d=([^;\n]+)(.*)$')
  local span, till = string.match(rest, '^;w=(%d+)'), string.match(rest, '^[;w=%d]*;u=(%a)')
  rest = string.gsub(string.gsub(rest, '^;w=%d+', ''), '^;u=%a', '')
  local was_till = string.match(old, '^[1+][^\n]-;d=[^;\n]+([;wu=%w]*)') or ''
  span, till = span or string.match(was_till, ';w=(%d+)'), till or string.match(was_till, ';u=(%a)')
  return '1' .. (lease and ';l=' .. lease or '') .. (ttl and ';t=' .. ttl or '') .. (own or was_own or '') .. ';d=' .. name ..
    (span and ';w=' .. span or '') .. (till and ';u=' .. till or '') .. rest
end
local updates, begins = string.find(mode, 'u', 1, true), string.find(mode, 'd', 1, true)
local requeues, framed = string.find(mode, 'q', 1, true), string.find(mode, 'e', 1, true)
-- fresh: records to add, with the due time of each (0 = none), and how its id is noted; rewritten: number -> new record;
-- moved: number -> due time of what has to be in scheduled from now on.
local fresh, whose, dues, forms, items, rewritten, moved, frames = {}, {}, {}, {}, {}, {}, {}, {}
local orphans, marks, origins, behind = {}, {}, {}, {}
local function add(what, due, form)
  local at = #fresh + 1
  dues[at], forms[at] = due, form
  return {what, at, due > now and 'scheduled' or 'ready', ''}
end
local function own_place(id) -- that of its creation, when it is due at once
  return math.min(now, tonumber(string.sub(id, 1, -12)))
end
local wanted = later > 0 and string.format(' %.0f', now + later) or '' -- when a successor is due, behind its number
local function rewrite(id, state, old, key, record, ends) -- ends: of the window for whose end it waits
  local content = merged(record, rewritten[id] or old)
  if not content then
    return {-2, id, state, header_of(old)}
  end
  rewritten[id] = content
  if key == scheduled and begins then
    moved[id] = math.max(ends > now and ends or 0, later > 0 and now + later or own_place(id))
  elseif key == ready then
    moved[id] = begins and later > 0 and now + later or own_place(id)
  end
  if moved[id] then
    state = moved[id] > now and 'scheduled' or 'ready'
  end
  return {2, id, state, header_of(content)}
end
local when = later > 0 and now + later or 0
-- A delivery whose lease has ended is ended by the answer that its job is ready: what its holder says later is stale. The
-- job stays where it is, so the next reserve counts the crash.
--@include lib/end_delivery
local function decided(name, value, record) -- what becomes of a record whose id is not free
  local ends = tonumber(string.match(value, '@(%d+)$')) or 0
  local owner, heir, wait = string.match(value, '^(%d+%-%d+) ?([%d-]*) ?(%d*)')
  local state, old, key, waits, words
  if owner then
    state, old, key = place_of(owner)
  end
  if heir and heir ~= '' then
    waits, words = place_of(heir)
  end
  if waits and not state then -- its ttl has ended, or it was evicted: the next one is due
    local at = math.max(own_place(heir), tonumber(wait) or 0)
    owner, state, old, key, waits = heir, at > now and 'scheduled' or 'ready', words, scheduled, nil
    orphans[owner] = at
    marks[#marks + 1] = name
    marks[#marks + 1] = owner
  end
  if key == active and state == 'ready' then
    end_delivery(owner)
  end
  local busy = key == active and state == 'active' or key == once
  if waits and updates and (requeues or not busy) then -- of the two it has the last word
    local item = rewrite(heir, waits, words, nil, record)
    if begins and item[1] == 2 then
      marks[#marks + 1] = name
      marks[#marks + 1] = owner .. ' ' .. heir .. wanted
    end
    return item
  elseif busy and requeues and not waits then
    behind[#fresh + 1] = {0, owner, state, header_of(old)}
    return add(3, 9007199254740991, owner .. ' %s' .. wanted)
  elseif busy then
    return {0, owner, state, header_of(old)}
  elseif state and ends > now and not requeues then
    return {0, owner, 'window', header_of(old)}
  elseif state then
    return updates and rewrite(owner, state, old, key, record, ends) or {0, owner, state, header_of(old)}
  elseif ends > now then
    return requeues and add(3, math.max(ends, now + later), '%s @' .. string.format('%.0f', ends)) or
      {0, '', 'window', ''}
  end
end
latest = {}
for i = 1, usual and 0 or asked do
  local name, record = names[i], given[i]
  local item, again = nil, latest[name]
  if again then -- it came before, in this very call
    if updates then
      fresh[again] = record
    end
    item = {updates and 2 or 0, again, dues[again] > now and 'scheduled' or 'ready', ''}
    if frames[1] and forms[again] then -- nobody has it
      item = {0, '', 'window', ''}
    elseif behind[again] and not updates then
      item = behind[again]
    end
  else
    item = owners[i] and decided(name, owners[i], record)
    if not item or item[1] == 3 then
      local at = #fresh + 1
      fresh[at], whose[at], latest[name], origins[at] = record, name, at, i
      if not item then
        dues[at] = when
        local span = framed and string.match(record, '^1[^\n]-;w=(%d+)')
        if span then -- the id is taken from now on for so long, whatever becomes of the job
          forms[at] = string.format('@%.0f', now + span)
          frames[#frames + 1] = string.sub(forms[at], 2)
          frames[#frames + 1] = name
        end
      end
    end
  end
  if item then
    items[#items + 1] = i
    items[#items + 1] = item
  end
end
