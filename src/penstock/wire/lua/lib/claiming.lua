-- Records with dedup ids: `asked` of them in `given`. Gives reply.
--- NEEDS  ready held active scheduled once tally expiry meta wake space dedup windows nonce asked mode later given
---        is_lease uses now end_of wait epoch limit drop_bodies paused last created replicas producer write_dedup
---        asleep full hungry waiting lapsed alarm change changes enqueued reach role spent unlisted
---        write_dedup_and_wake front stood elsewhere
--- SETS   uses limit hungry waiting alarm
--- GIVES  reply
--@include lib/expired_windows
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
local recount, ended = {}, {}
local function end_delivery(id)
  if not ended[id] then
    ended[id] = true
    local d, rest = match(redis.call('HGET', tally, id) or '1 0 0 0', '^(%d+)( .*)$')
    if d then -- no number is set aside yet
      recount[#recount + 1] = id
      recount[#recount + 1] = d + 1 .. '+' .. rest
    end
  end
end
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
local n = usual and asked or #fresh
if asked == 0 then
  --@include lib/renewed
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
elseif n == 0 then -- nothing is added, so there is room
  limit = nil
end
--@include lib/crowded
--@include lib/numbers
local list, whence = usual and given or fresh, origins
--@include lib/lives
local stops, records, due, gone, soonest, token = {}, {}, {}, {}, nil, false
for id, at in pairs(orphans) do
  local ends = mortal and tonumber(redis.call('ZSCORE', expiry, id))
  local when = ends and math.min(ends, at) or at
  soonest = math.min(soonest or when, when)
  due[#due + 1] = string.format('%.0f', when)
  due[#due + 1] = id
end
for i = 2, lives and #lives or 0, 2 do
  stops[lives[i]] = tonumber(lives[i - 1])
end
if usual then
  local call = redis.call
  for i = 1, n do
    local id = ids[i]
    marks[i * 2 - 1], marks[i * 2] = names[i], id
    call('XADD', ready, id, 'j', apart(id, given[i], bodies))
  end
  token = true
end
for i = 1, usual and 0 or n do
  marks[#marks + 1] = whose[i]
  marks[#marks + 1] = forms[i] and string.format(forms[i], ids[i]) or ids[i]
  if dues[i] > 0 then
    local when = math.min(dues[i], stops[ids[i]] or dues[i])
    soonest = math.min(soonest or when, when)
    records[#records + 1] = ids[i]
    records[#records + 1] = apart(ids[i], fresh[i], bodies)
    due[#due + 1] = string.format('%.0f', when)
    due[#due + 1] = ids[i]
  else
    token = true
    redis.call('XADD', ready, ids[i], 'j', apart(ids[i], fresh[i], bodies))
  end
end
local shrunk = {} -- they have a new body, which does not lie apart
for id, content in pairs(rewritten) do
  records[#records + 1] = id
  local size = #bodies
  records[#records + 1] = notes[id] .. apart(id, content, bodies)
  if #bodies == size then
    shrunk[#shrunk + 1] = id
  end
  ruled = ruled or string.find(string.match(content, '^[^\n]*'), ';p=', 1, true)
  if moved[id] then
    local ends = mortal and tonumber(redis.call('ZSCORE', expiry, id))
    local when = ends and math.min(ends, moved[id]) or moved[id]
    soonest = math.min(soonest or when, when)
    gone[#gone + 1] = id
    due[#due + 1] = string.format('%.0f', when)
    due[#due + 1] = id
  end
end
if #records > 0 then
  redis.call('HSET', held, unpack(records))
end
if #bodies > 0 then
  redis.call('HSET', held, unpack(bodies))
end
drop_bodies(shrunk)
if #gone > 0 then
  redis.call('XDEL', ready, unpack(gone))
end
if #recount > 0 then
  redis.call('HSET', tally, unpack(recount))
end
--@include lib/use
if #recount > 0 then
  use('r')
end
if n > 0 then
  use('d')
end
if string.find(mode, 's', 1, true) then
  use('s')
end
--@include lib/announce
if soonest then
  token = soonest <= now or announce(soonest, false) or token
end
token = token and paused ~= 'out'
if n == 0 then
  first, final = '', last
end
--@include lib/note_added
local words = {}
local reply = {1, nonce, first, n, epoch, created, 0, later > 0 and 1 or 0, replicas}
for i = 1, #items, 2 do
  local what, id, state, header = unpack(items[i + 1])
  if tonumber(id) then -- a place among those that were added
    id, header = ids[id], header_of(fresh[id])
  end
  words[#words + 1] = items[i] .. ' ' .. what .. ' ' .. id .. ' ' .. state .. ' ' .. header .. '\n'
  local j = #reply
  reply[j + 1], reply[j + 2], reply[j + 3], reply[j + 4], reply[j + 5] = items[i], what, id, state, header
end
redis.call('SET', producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (later > 0 and ' 1\n' or ' 0\n') ..
  table.concat(words), 'PX', 600000)
--@include lib/expire
close_windows()
local successor_due = write_dedup()
if #due > 0 then
  redis.call('ZADD', scheduled, unpack(due))
end
-- Who has the ids from now on, behind what has been released above.
if #marks > 0 then
  redis.call('HSET', dedup, unpack(marks))
end
if #frames > 0 then
  redis.call('ZADD', windows, unpack(frames))
end
if successor_due and successor_due <= now and paused ~= 'out' then
  token = true
end
if token and asleep then
  redis.call('RPUSH', wake, '1')
end
if full > now and hungry and (waiting + n < limit or #lapsed > 0) then
  redis.call('RPUSH', space, '1')
end
