-- `keyed` has the functions of the limits per key (protocol/keys.md); nil if the queue has no limits. They decide while a script
-- reads. keyed.admit(), which is called last, writes what was decided, and gives free tickets to parked jobs. A hash is that of a key: the
-- score of its jobs in tickets and parked.
--- KEYS   held active scheduled once meta wake parked tickets turns paces holds
--- NEEDS  has_urgent uses now seen nothing
--- GIVES  keyed
local keyed = nil
if uses_any('tickets') then
  keyed = {}
  local call, fmt, match = redis.call, string.format, string.match
  local settings = call('HMGET', meta, 'per_key', 'ordered', 'recheck', 'share', 'key_rate', 'key_burst')
  local is_ordered, is_crowded = settings[2] == '1', call('ZCARD', parked) > 0
  local hard_limit = is_ordered and 1 or tonumber(settings[1]) or math.huge -- of the tickets of a key
  -- The time from which an admitted job is due: now, but not that of a single wrong reading of TIME (see clock).
  local line_end = now - seen > 2592000000 and seen + 1000 or now
  local pace = nil
  if settings[5] then
    --@include lib/keyed/new_pace
    pace = new_pace(settings[5], settings[6], line_end)
  end
  local share = not is_ordered and not pace and tonumber(settings[4])
  local has_turns = share or pace
  local most = pace and 0 or share and math.min(share, hard_limit) or hard_limit -- tickets that are given without a turn
  call('ZCARD', tickets)
  call('ZCARD', scheduled)
  call('LLEN', wake)
  if is_ordered then
    call('ZCARD', once)
  end
  if has_turns then
    call('ZCARD', turns)
  end
  --@include lib/keyed/hold_end (gives: has_holds)
  local hashes, freed, rooms, holders = {}, {}, {}, {}
  local has_ticket, used, lost, given, waiting = {}, {}, {}, {}, {}
  local joins, had_turn, left = {}, {}, {} -- hashes of keys that may not be in turns yet, and of those whose turn it was; their jobs, which leave parked
  local key = ';q=(' .. string.rep('%x', 13) .. ')'
  local first_key = '^[1+]' .. key
  -- free(hash, count): note that so many tickets of a key may be free. Admit looks only at keys that were named here.
  local function free(hash, count)
    if not freed[hash] then
      hashes[#hashes + 1], freed[hash] = hash, 0
    end
    freed[hash] = freed[hash] + count
  end
  --@include lib/add/priority_of
  -- Give the ticket of the key to this parked job of an ordered queue, if it has a lower number than the job that has the ticket, and that
  -- one is ready: not delivered, and not waiting for a later try.
  local function pass_ticket(id, hash)
    local holder = holders[hash]
    if holder == nil then
      holder = call('ZRANGE', tickets, hash, hash, 'BYSCORE', 'LIMIT', '0', '1')[1] or false
      holder = holder and not used[holder] and not call('ZSCORE', active, holder) and not call('ZSCORE', once, holder)
        and tonumber(call('ZSCORE', scheduled, holder) or 0) <= now and holder
      holders[hash] = holder
    end
    if holder and id < holder then
      lost[#lost + 1], holders[hash], has_ticket[holder], used[holder] = holder, false, nil, true
      free(hash, 1)
    end
  end
  -- keyed.look_at(hash, count): the same for a key that may be missing in turns.
  local function look_at(hash, count)
    free(hash, count)
    joins[hash] = true
  end
  keyed.look_at = look_at
  -- keyed.read(ids): note which of these jobs have tickets. It comes before keyed.take, unless the jobs are new.
  keyed.read = function(ids)
    local scores = #ids > 0 and call('ZMSCORE', tickets, unpack(ids)) or {}
    for i = 1, #ids do
      has_ticket[ids[i]] = scores[i] and not used[ids[i]]
    end
  end
  -- Park a candidate: it loses its ticket. On an ordered queue it may be the first of its key.
  local function park(id, hash)
    rooms[hash] = 0
    waiting[#waiting + 1], waiting[#waiting + 2] = hash, id
    look_at(hash, 0)
    if has_ticket[id] then
      lost[#lost + 1], holders[hash], has_ticket[id] = id, false, nil
    elseif is_ordered then
      pass_ticket(id, hash)
    end
    return false
  end
  -- The same as keyed.take, with a rate for each key: no job gets a ticket before it is delivered, and one that waits with its ticket needs a
  -- delivery of the rate, too.
  local function take_paced(id, hash, source)
    local owns, room = has_ticket[id], rooms[hash]
    if not room then
      room = is_crowded and call('ZCOUNT', parked, hash, hash) > 0 and 0 or hard_limit - call('ZCOUNT', tickets, hash, hash)
    end
    if source and (owns or room > 0) and pace.allowed(hash) > 0 then
      pace.spend(hash)
      rooms[hash], holders[hash], used[id] = owns and room or room - 1, false, true
      if not owns then
        given[#given + 1], given[#given + 2] = hash, id
      end
      return true
    end
    return park(id, hash)
  end
  -- keyed.take(id, record, source): return true if the job has a ticket, gets one, or needs none. Otherwise it will be parked: false. Then the caller
  -- moves its record to held, and leaves it out. source: 'ended' = its lease has ended, 'waiting' = another candidate, nil = it is new.
  keyed.take = function(id, record, source)
    local passes = has_ticket[id] and not (pace and source == 'waiting')
    if not has_holds and (passes or most == math.huge) then
      used[id] = true
      return true
    end
    local hex = match(record, first_key) or match(match(record, '^[^\n]*'), key)
    if not hex then
      return true
    end
    local hash = fmt('%.0f', tonumber(hex, 16))
    if hold_end(hash) then
      return park(id, hash)
    elseif passes then
      used[id] = true
      return true
    elseif pace then
      return take_paced(id, hash, source)
    end
    local room = rooms[hash]
    if not room then
      local comes_later = is_crowded and call('ZCOUNT', parked, hash, hash) > 0
      if comes_later then -- a raised limit may have room
        free(hash, 1)
      end
      room = comes_later and 0 or most - call('ZCOUNT', tickets, hash, hash)
      joins[hash] = not comes_later
    end
    if room == math.huge then -- no limit, and no hold of this key
      rooms[hash] = room
      return true
    elseif room > 0 then
      rooms[hash], holders[hash] = room - 1, false
      given[#given + 1], given[#given + 2] = hash, id
      return true
    end
    rooms[hash] = 0
    waiting[#waiting + 1], waiting[#waiting + 2] = hash, id
    if share then
      free(hash, 0)
    elseif is_ordered then
      pass_ticket(id, hash)
    end
    return false
  end
  -- keyed.unpark(ids): take these jobs out of parked, those that are there.
  keyed.unpark = function(ids)
    local scores = has_turns and call('ZMSCORE', parked, unpack(ids)) or {}
    for i = 1, #ids do
      if scores[i] then
        free(scores[i], 0)
      end
    end
    call('ZREM', parked, unpack(ids))
  end
  -- keyed.give_back(ids): take the tickets of these jobs, which have ended, and take them out of parked.
  keyed.give_back = function(ids)
    local scores, others = #ids > 0 and call('ZMSCORE', tickets, unpack(ids)) or {}, {}
    for i = 1, #ids do
      if scores[i] then
        free(scores[i], 1)
      else
        others[#others + 1] = ids[i]
      end
    end
    if #others < #ids then
      call('ZREM', tickets, unpack(ids))
    end
    if #others > 0 and is_crowded then
      keyed.unpark(others)
    end
  end
  keyed.is_ordered, keyed.has_holds, keyed.has_turns, keyed.pace, keyed.hard_limit = is_ordered, has_holds, has_turns, pace, hard_limit
  -- keyed.note_turn(hash, id, is_early): this parked job of the key is delivered, as it is its turn; nil = none of them. Its next turn comes after
  -- those of others; so does one whose time in turns is earlier than its rate allows.
  keyed.note_turn = has_turns and function(hash, id, is_early)
    free(hash, 0)
    had_turn[hash] = had_turn[hash] or is_early
    if id then
      had_turn[hash] = true
      given[#given + 1], given[#given + 2], left[#left + 1] = hash, id, id
      if pace then
        pace.spend(hash)
      end
    end
  end
  -- keyed.postpone(ids): take the tickets of jobs that wait for a later time. On an ordered queue they keep them.
  keyed.postpone = is_ordered and nothing or keyed.give_back
  -- keyed.line_up({number, due, ...}): jobs that are put back at once and have a ticket come behind those that wait. It changes their due times.
  keyed.line_up = function(returned)
    local ids = {}
    for i = 1, #returned, 2 do
      ids[#ids + 1] = returned[i]
    end
    local scores = #ids > 0 and call('ZMSCORE', tickets, unpack(ids)) or {}
    for i = 1, #ids do
      returned[2 * i] = scores[i] and math.max(returned[2 * i], line_end) or returned[2 * i]
    end
  end
  --@include lib/add/write_in_parts
  local next_hash, has_remainder = match(settings[3] or '', '^(%d+) ([01])$')
  -- After a limit was loosened: free one job of each of the next `count` keys with parked jobs. The field `recheck` of meta has the hash of the
  -- next key, and 1 if an earlier key still has jobs that could be admitted.
  local function free_keys_to_recheck(count)
    for _ = 1, count do
      local first = call('ZRANGE', parked, next_hash, '+inf', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')
      next_hash = first[2] and fmt('%.0f', first[2] + 1)
      if not next_hash then
        break
      end
      look_at(first[2], 1)
    end
  end
  -- keyed.end_holds(count): free the keys of holds that have ended, and of those of a wrong clock, up to so many of each. Admit drops a hold
  -- when no parked job of its key is left that has room.
  local over = {}
  keyed.end_holds = function(count)
    for _, span in ipairs(has_holds and {{'-inf', fmt('%.0f', line_end)}, {fmt('(%.0f', line_end + 90000000), '+inf'}} or {}) do
      for _, hash in ipairs(call('ZRANGE', holds, span[1], span[2], 'BYSCORE', 'LIMIT', '0', count)) do
        look_at(hash, 1)
        over[#over + 1] = hash
      end
    end
  end
  -- keyed.recheck_limit: keys at which a call looks, at least 100 of them for `recheck`. Scripts that deliver set it; 0 = none.
  -- keyed.admit(): write what was decided, and give tickets to the lowest parked jobs of the freed keys: one for each that was freed, and up to 100
  -- more in total. Those jobs are due at line_end. With a share or a rate it writes to turns which of these keys may get more tickets, and when. It
  -- returns from when jobs are due, or may be by a turn, or that keys remain to be rechecked: now; nil = none of these.
  keyed.recheck_limit = 0
  keyed.admit = function()
    if keyed.recheck_limit > 0 then
      keyed.end_holds(keyed.recheck_limit)
    end
    local is_rechecking = next_hash and keyed.recheck_limit > 0
    if is_rechecking then
      free_keys_to_recheck(math.max(100, keyed.recheck_limit - #hashes))
    end
    write_in_parts(lost, function(...) call('ZREM', tickets, ...) end)
    write_in_parts(given, function(...) call('ZADD', tickets, ...) end)
    write_in_parts(waiting, function(...) call('ZADD', parked, ...) end)
    local spare, moved, due, granted, more_read = 100, {}, {}, {}, share and 1 or 0
    local joining, moving, leaving, first_turn = {}, {}, {}, nil -- keys in turns: those that come, that go to the end, that go
    local first_hold, has_rest, has_more_over = nil, {}, false -- of holds: the first end that jobs wait for; keys of which more jobs have room
    if #left > 0 then
      write_in_parts(left, function(...) call('ZREM', parked, ...) end)
    end
    for i = 1, (is_crowded or #waiting > 0) and #hashes or 0 do
      local hash = hashes[i]
      local ids = call('ZRANGE', parked, hash, hash, 'BYSCORE', 'LIMIT', '0', share and '2' or '1')
      local ends = ids[1] and hold_end(hash)
      if ends then
        first_hold = math.min(first_hold or ends, ends)
      end
      local ticket_count = ids[1] and not ends and call('ZCOUNT', tickets, hash, hash) or 0
      local room = ids[1] and not ends and most - ticket_count or 0
      local count = math.max(0, math.min(room, 1))
      if room > 1 then
        count = math.min(room, freed[hash] + spare)
        ids = call('ZRANGE', parked, hash, hash, 'BYSCORE', 'LIMIT', '0', count + more_read)
        has_remainder = is_rechecking and #ids >= count and count < room and '1' or has_remainder
        has_rest[hash] = #ids >= count and count < room
        count = math.min(count, #ids)
        spare = spare - math.max(0, count - freed[hash])
      end
      if has_turns then
        local list = had_turn[hash] and moving or joining
        if #ids == count or ends or ticket_count + count >= hard_limit then
          leaving[#leaving + 1] = hash
        elseif had_turn[hash] or joins[hash] or hard_limit < math.huge then
          local turn_at = pace and math.max(line_end, pace.free_at(hash)) or line_end
          list[#list + 1], list[#list + 2] = fmt('%.0f', turn_at), hash
          first_turn = math.min(first_turn or turn_at, turn_at)
        elseif share then
          first_turn = now
        end
      end
      for j = 1, count do
        local at = #due + 1
        moved[#moved + 1] = ids[j]
        local priority = has_urgent and priority_of(call('HGET', held, ids[j]) or '') or 0
        due[at], due[at + 1] = fmt('%.0f', line_end - priority * 4398046511104), ids[j]
        granted[at], granted[at + 1] = hash, ids[j]
      end
    end
    write_in_parts(moved, function(...) call('ZREM', parked, ...) end)
    write_in_parts(due, function(...) call('ZADD', scheduled, ...) end)
    write_in_parts(granted, function(...) call('ZADD', tickets, ...) end)
    if pace then
      pace.write(keyed.recheck_limit > 0 and 2 * keyed.recheck_limit - 198 or 0)
      if #joining + #moving > 0 then
        call('HDEL', held, '-')
      end
    end
    if has_turns then
      write_in_parts(joining, function(...) call('ZADD', turns, pace and 'LT' or 'NX', ...) end)
      write_in_parts(moving, function(...) call('ZADD', turns, ...) end)
      write_in_parts(leaving, function(...) call('ZREM', turns, ...) end)
    end
    local dropped = {}
    for i = 1, #over do
      if has_rest[over[i]] then
        has_more_over = true
      else
        dropped[#dropped + 1] = over[i]
      end
    end
    if #dropped > 0 then
      call('HDEL', held, '-')
    end
    write_in_parts(dropped, function(...) call('ZREM', holds, ...) end)
    over = {}
    if is_rechecking then
      if not next_hash and has_remainder == '1' then -- from the first key again
        next_hash, has_remainder = '0', '0'
      end
      call('HDEL', meta, 'recheck')
      if next_hash then
        call('HSET', meta, 'recheck', next_hash .. ' ' .. has_remainder)
      end
      keyed.recheck_limit = 0
    end
    hashes, freed, joins, left, had_turn = {}, {}, {}, {}, {}
    local is_due = #moved > 0 or share and first_turn or is_rechecking and next_hash or has_more_over
    return is_due and now or first_turn and first_hold and math.min(first_turn, first_hold) or first_turn or first_hold
  end
end
