-- Release the dedup ids of jobs that end. An id becomes free, or goes to the successor that waits for this end, or stays
-- taken for its window.
-- release_dedup(ids, done, window) decides, before the first write; `window` replaces the windows in the records.
-- `done`: they were acked, so an id stays taken for its window; jobs that end otherwise free it at once.
-- write_ends() writes what the ends of jobs, and new tickets, change elsewhere. It comes after the removals:
--   1. the dedup ids, and the successors that they wait for;
--   2. parked jobs: those that keyed.take has refused, and those that get a ticket now (keyed.admit);
--   3. it tells of the callback of a batch that has become due, and of jobs that were added after deaths (`fired`).
-- It returns the earliest due time of the jobs that became due by it; nil = there are none. write_ends_and_wake() also adds
-- the wake token for those of the next 4 s.
-- Values in dedup: `number`, `number successor`, `number successor due`, `number @end` (a job that waits for the end of a
-- window) or `@end`.
--- KEYS   ready held scheduled urgent expiry dedup windows wake
--- NEEDS  has_urgent uses nothing now paused keyed fired
--- GIVES  has_dedup release_dedup write_ends write_ends_and_wake
local has_dedup = uses_any('dedup')
local release_dedup, write_ends, write_ends_and_wake = nothing, nothing, nothing
if has_dedup then
  --@include lib/add/write_in_parts
  --@include lib/add/place_jobs (gives: place, write_places)
  local successors, opened, values_of, changed, released = {}, {}, {}, {}, {}
  local stops = {[''] = false} -- ends of windows, by the fields that tell them: most jobs have equal ones
  release_dedup = function(ids, done, window)
    if #ids == 0 then
      return
    end
    local values, named, rests, named_ids = redis.call('HMGET', held, unpack(ids)), {}, {}, ids
    local match, n = string.match, 0
    for i = 1, #ids do
      local value = values[i]
      if not value then
        local entry = redis.call('XRANGE', ready, ids[i], ids[i])[1]
        value = entry and entry[2][2] or ''
      end
      local name, rest, last = match(value, '^@[^\n]*\n[1+];d=([^;\n]+)([^\n]-);i=[^;\n]+([^\n]*)')
      if name then
        rest = rest .. last -- without the stable id, which differs in each job
      else
        name, rest = match(match(value, '^@[^\n]*\n([^\n]*)') or match(value, '^[^\n]*'), ';d=([^;]+)(.*)')
      end
      if name then
        n = n + 1
        named[n], rests[n] = name, rest
        if named_ids ~= ids then
          named_ids[n] = ids[i]
        end
      elseif named_ids == ids then -- from here on only some jobs have dedup ids
        named_ids = {unpack(ids, 1, i - 1)}
      end
    end
    local owners = #named > 0 and redis.call('HMGET', dedup, unpack(named)) or {}
    local stop = window and window > 0 and string.format('%.0f', now + window)
    for j = 1, n do
      local name, number = named[j], named_ids[j]
      local value = values_of[name] or owners[j]
      if not done then
        stop = false
      elseif not window then
        stop = stops[rests[j]]
        if stop == nil then
          local span = math.min(match(rests[j], ';w=(%d+)') or 0, 3162240000000)
          stop = span > 0 and string.format('%.0f', now + span)
          stops[rests[j]] = stop
        end
      end
      if value == number and not values_of[name] then -- the usual case
        if stop then
          values_of[name] = '@' .. stop
          changed[#changed + 1] = name
          opened[#opened + 1] = stop
          opened[#opened + 1] = name
        else
          released[#released + 1] = name
        end
      elseif value then
        changed[#changed + 1] = name
        local owner, successor, wait = string.match(value, '^(%d+%-%d+) ?([%d-]*) ?(%d*)')
        if owner == number and successor ~= '' then
          values_of[name] = successor .. (stop and ' @' .. stop or '')
          successors[#successors + 1] = successor
          local at = stop and tonumber(stop) or math.min(now, tonumber(string.sub(successor, 1, -12)))
          successors[#successors + 1] = math.max(at, tonumber(wait) or 0)
        elseif owner == number then
          local ends = tonumber(string.match(value, '@(%d+)$')) or 0 -- it waited for the end of a window
          values_of[name] = stop and '@' .. stop or ends > now and string.format('@%.0f', ends) or ''
        elseif successor == number then
          values_of[name] = owner
        end
        if stop and owner == number then
          opened[#opened + 1] = stop
          opened[#opened + 1] = name
        end
      end
    end
    if #successors > 0 then
      redis.call('ZCARD', scheduled)
      redis.call('ZCARD', expiry)
      redis.call('LLEN', wake)
    end
    if #opened > 0 then
      redis.call('ZCARD', windows)
    end
  end
  write_ends = function()
    local passed, earliest = {}, nil
    for i = 1, #changed do
      local name = changed[i]
      local value = values_of[name]
      if value == '' then
        released[#released + 1] = name
      elseif value then
        passed[#passed + 1] = name
        passed[#passed + 1] = value
      end
    end
    write_in_parts(released, function(...) redis.call('HDEL', dedup, ...) end)
    write_in_parts(passed, function(...) redis.call('HSET', dedup, ...) end)
    for i = 1, #successors, 2 do
      local id, due = successors[i], successors[i + 1]
      if redis.call('ZSCORE', scheduled, id) then -- it may have ended in this call
        due = math.min(due, tonumber(redis.call('ZSCORE', expiry, id)) or due)
        place(id, due, has_urgent and (redis.call('ZSCORE', urgent, id) or 0) % 16 or 0)
        earliest = math.min(earliest or due, due)
      end
    end
    write_places()
    write_in_parts(opened, function(...) redis.call('ZADD', windows, ...) end)
    return earliest
  end
end
if keyed then
  local write_owners = write_ends
  write_ends = function()
    local due = write_owners()
    local admitted_at = keyed.admit()
    return admitted_at and math.min(due or admitted_at, admitted_at) or due
  end
end
if uses_any('batches policies') then
  local write_others = write_ends
  write_ends = function() -- fired: the callback of a batch has become due, or a job was added after a death
    local due = write_others()
    return fired and math.min(due or fired, fired) or due
  end
end
if write_ends ~= nothing then
  write_ends_and_wake = function() -- a consumer waits for the job that is due, or that its key has in the next 4 s
    local due = write_ends()
    if due and due <= now + 4000 and paused ~= 'out' and paused ~= 'all' and redis.call('LLEN', wake) == 0 then
      redis.call('RPUSH', wake, '1')
    end
  end
end
