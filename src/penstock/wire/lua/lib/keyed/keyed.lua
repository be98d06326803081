-- `keyed` has the functions of the limits per key (protocol/keys.md); nil if the queue has no limits. They decide while a script
-- reads. keyed.admit(), which is called last, writes what was decided, and gives free tickets to parked jobs. A hash is that of a key: the
-- score of its jobs in tickets and parked.
--- KEYS   held active scheduled once meta wake parked tickets
--- NEEDS  has_urgent uses now seen nothing
--- GIVES  keyed
local keyed = nil
if uses_any('tickets') then
  keyed = {}
  local call, fmt, match = redis.call, string.format, string.match
  local settings = call('HMGET', meta, 'per_key', 'ordered', 'recheck')
  local is_ordered, is_crowded = settings[2] == '1', call('ZCARD', parked) > 0
  local most = is_ordered and 1 or tonumber(settings[1]) or math.huge
  call('HLEN', held)
  call('ZCARD', tickets)
  call('ZCARD', scheduled)
  call('ZCARD', once)
  call('LLEN', wake)
  local hashes, freed, rooms, holders = {}, {}, {}, {}
  local has_ticket, used, lost, given, waiting = {}, {}, {}, {}, {}
  local key = ';q=(' .. string.rep('%x', 13) .. ')'
  local first_key = '^[1+]' .. key
  -- keyed.free(hash, count): note that so many tickets of a key may be free. Admit looks only at keys that were named here.
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
  keyed.free = free
  -- keyed.read(ids): note which of these jobs have tickets. It comes before keyed.take, unless the jobs are new.
  keyed.read = function(ids)
    local scores = #ids > 0 and call('ZMSCORE', tickets, unpack(ids)) or {}
    for i = 1, #ids do
      has_ticket[ids[i]] = scores[i] and not used[ids[i]]
    end
  end
  -- keyed.take(id, record): return true if the job has a ticket, gets one, or needs none. Otherwise it will be parked: false. Then the caller
  -- moves its record to held, and leaves it out.
  keyed.take = function(id, record)
    if has_ticket[id] or most == math.huge then
      used[id] = true
      return true
    end
    local hex = match(record, first_key) or match(match(record, '^[^\n]*'), key)
    if not hex then
      return true
    end
    local hash = fmt('%.0f', tonumber(hex, 16))
    local room = rooms[hash]
    if not room then
      local comes_later = is_crowded and call('ZCOUNT', parked, hash, hash) > 0
      if comes_later then -- a raised limit may have room
        free(hash, 1)
      end
      room = comes_later and 0 or most - call('ZCOUNT', tickets, hash, hash)
    end
    if room > 0 then
      rooms[hash], holders[hash] = room - 1, false
      given[#given + 1], given[#given + 2] = hash, id
      return true
    end
    rooms[hash] = 0
    waiting[#waiting + 1], waiting[#waiting + 2] = hash, id
    if is_ordered then
      pass_ticket(id, hash)
    end
    return false
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
      call('ZREM', parked, unpack(others))
    end
  end
  keyed.is_ordered = is_ordered
  -- keyed.postpone(ids): take the tickets of jobs that wait for a later time. On an ordered queue they keep them.
  keyed.postpone = is_ordered and nothing or keyed.give_back
  -- The time from which an admitted job is due: now, but not that of a single wrong reading of TIME (see clock).
  local line_end = now - seen > 2592000000 and seen + 1000 or now
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
      free(first[2], 1)
    end
  end
  -- keyed.recheck_limit: keys at which a call looks, at least 100 of them for `recheck`. Scripts that deliver set it; 0 = none.
  -- keyed.admit(): write what was decided, and give tickets to the lowest parked jobs of the freed keys: one for each that was freed, and up to 100
  -- more in total. Those jobs are due at line_end. It returns true if jobs became due, or if keys remain to be rechecked.
  keyed.recheck_limit = 0
  keyed.admit = function()
    local is_rechecking = next_hash and keyed.recheck_limit > 0
    if is_rechecking then
      free_keys_to_recheck(math.max(100, keyed.recheck_limit - #hashes))
    end
    write_in_parts(lost, function(...) call('ZREM', tickets, ...) end)
    write_in_parts(given, function(...) call('ZADD', tickets, ...) end)
    write_in_parts(waiting, function(...) call('ZADD', parked, ...) end)
    local spare, moved, due, granted = 100, {}, {}, {}
    for i = 1, (is_crowded or #waiting > 0) and #hashes or 0 do
      local hash = hashes[i]
      local ids = call('ZRANGE', parked, hash, hash, 'BYSCORE', 'LIMIT', '0', '1')
      local room = ids[1] and most - call('ZCOUNT', tickets, hash, hash) or 0
      if room > 1 then
        local count = math.min(room, freed[hash] + spare)
        ids = call('ZRANGE', parked, hash, hash, 'BYSCORE', 'LIMIT', '0', count)
        spare = spare - math.max(0, #ids - freed[hash])
        has_remainder = is_rechecking and #ids == count and count < room and '1' or has_remainder
      end
      for j = 1, room > 0 and #ids or 0 do
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
    hashes, freed = {}, {}
    return #moved > 0 or is_rechecking and next_hash ~= nil
  end
end
