-- count_members(ids, state) counts for their batches that jobs are done, failed (they end otherwise), dead, or open again.
-- It also notes the ends of jobs that a step has called; the last end makes the caller due (protocol/steps.md, Calls).
-- Call it behind the first write, when the jobs have left their places. It makes the callback of a closed batch due when
-- no job is left to wait for (fired = its time), buries it if it can't succeed any more, or adds its follow-up if it waits only for dead
-- letters (protocol/batches.md). A callback that ends takes its entry with it. closed = a batch that was closed in this call.
--- KEYS   held scheduled urgent dead tally members batches meta
--- NEEDS  nothing now uses notify_ended keyed has_urgent
--- GIVES  fired follow_deaths count_members
local count_members, fired = nothing, nil
--@include lib/finish/follow_deaths
if uses_any('batches') then
  redis.call('HLEN', members) -- check the types before the first write
  redis.call('HLEN', batches)
  --@include lib/add/priority_of
  local function finish_batch(callback)
    local on, total, done, failed, died, state = string.match(redis.call('HGET', batches, callback) or '', '^(%a) (%d+) (%d+) (%d+) (%d+) (%d)$')
    local waits = state == '0' and tonumber(redis.call('ZSCORE', scheduled, callback) or 0) == 9007199254740991
    if not waits or total - done - failed - died > 0 then
      return
    elseif on == 'f' or failed + died == 0 then
      state, fired = '2', now
      local priority = priority_of(redis.call('HGET', held, callback) or '')
      redis.call('ZADD', scheduled, string.format('%.0f', now - priority * 4398046511104), callback)
    elseif died + 0 == 0 then
      state = '3'
      redis.call('ZREM', scheduled, callback)
      redis.call('ZADD', dead, now, callback)
      redis.call('HSET', tally, callback, '0 0 0 0 batch: ' .. failed .. ' of ' .. total .. ' jobs have failed')
      redis.call('HINCRBY', meta, 'died', 1)
      notify_ended({callback})
      count_members({callback}, 'dead') -- it may be a member of another batch
      if on ~= 'u' then
        follow_deaths({callback})
      end
    elseif on == 't' then
      on = 'u'
      follow_deaths({callback}, 'batch: ' .. died .. ' of ' .. total .. ' jobs are dead letters')
    end
    redis.call('HSET', batches, callback, table.concat({on, total, done, failed, died, state}, ' '))
  end
  --@include lib/batches/end_call
  local error_of = function(id) -- of a dead letter
    local text = string.match(redis.call('HGET', tally, id) or '', '^%S+ %d+ %d+ %d+ ?(.*)$') or ''
    return string.sub(text, 1, 1024)
  end
  local state_of_call = {done = 'done', failed = 'removed', dead = 'dead'}
  local function finish_call(id, field, state)
    local caller, name = end_call(field, state_of_call[state], state == 'dead' and error_of(id) or '')
    local head = caller and redis.call('HGET', tally, 'n' .. caller)
    local front, open, awaited = string.match(head or '', '^(%d+ %d+ %d+ %d+ )c(%d+) (.*)$')
    if awaited ~= name or not front then
      return
    elseif open + 0 > 1 then
      redis.call('HSET', tally, 'n' .. caller, front .. string.format('c%.0f ', open - 1) .. name)
      return
    end
    redis.call('HSET', tally, 'n' .. caller, front .. '-')
    if redis.call('ZSCORE', scheduled, caller) then
      local priority = priority_of(redis.call('HGET', held, caller) or '')
      local due = math.min(now, tonumber(string.sub(caller, 1, -12)))
      redis.call('ZADD', scheduled, string.format('%.0f', due - priority * 4398046511104), caller)
      if has_urgent then
        redis.call('ZREM', urgent, caller)
      end
      fired = now
    end
  end
  count_members = function(ids, state, closed)
    if closed then
      finish_batch(closed)
    end
    if #ids == 0 then
      return
    end
    local values, counts, touched, changed = redis.call('HMGET', members, unpack(ids)), {}, {}, {}
    local counted, called = {}, {} -- a job that is named twice counts once
    for i = 1, #ids do
      local was_dead, callback, place = string.match(values[i] or '', '^(!?)([^:]+)(.*)$')
      if callback and not counted[ids[i]] and string.byte(callback) == 110 then -- n: a step has called it
        counted[ids[i]] = true
        called[#called + 1] = i
      elseif callback and not counted[ids[i]] then
        counted[ids[i]] = true
        if not counts[callback] then
          counts[callback], touched[#touched + 1] = {done = 0, failed = 0, dead = 0, open = 0}, callback
        end
        local own = counts[callback]
        own.dead = own.dead - #was_dead
        own[state] = own[state] + 1
        changed[#changed + 1] = ids[i]
        changed[#changed + 1] = (state == 'dead' and '!' or '') .. callback .. place
      end
    end
    if state == 'done' or state == 'failed' then
      redis.call('HDEL', members, unpack(ids))
      redis.call('HDEL', batches, unpack(ids))
    elseif #changed > 0 then
      redis.call('HSET', members, unpack(changed))
    end
    for i = 1, #called do
      if state == 'dead' then -- a redrive of it changes nothing for its caller
        redis.call('HDEL', members, ids[called[i]])
      end
      finish_call(ids[called[i]], values[called[i]], state)
    end
    for i = 1, #touched do
      local callback, own = touched[i], counts[touched[i]]
      local on, total, done, failed, died, rest = string.match(redis.call('HGET', batches, callback) or '', '^(%a) (%d+) (%d+) (%d+) (%d+) (%d)$')
      if on then
        redis.call('HSET', batches, callback, table.concat({on, total, done + own.done, failed + own.failed, died + own.dead, rest}, ' '))
        finish_batch(callback)
      end
    end
  end
end
