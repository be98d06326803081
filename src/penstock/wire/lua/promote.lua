--- Make jobs deliverable at once, at the place of their creation. A delivery ends, and so does the time of a wait for a signal.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch uses seen off paused alarm
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -2 ready at its place, dead, delivered at most once, or waiting for the
---                                        end of the job that has its dedup id, or of its window, or for jobs that it has called, -3 its ttl
---                                        has ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM scheduled, active  TO scheduled
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/check_numbers
--@include lib/checks/decide_each
--@include lib/return/end_delivery (gives: new_counters)
local function waits_for_another(id) -- for the end of the job that has its dedup id, or of its window
  local value = redis.call('HGET', held, id) or ''
  local name = string.match(string.match(value, '^@[^\n]*\n([^\n]*)') or value, '^[1+][^\n]-;d=([^;\n]+)')
  local owners = name and redis.call('HGET', dedup, name) or ''
  local ends = string.sub(owners, 1, #id) == id and tonumber(string.match(owners, ' @(%d+)$')) or 0
  return string.match(owners, '^%S+ (%d+%-%d+)') == id or ends > now
end
local returned = {}
local function decide(id)
  local waits = tonumber(redis.call('ZSCORE', scheduled, id))
  waits = waits and waits < 0 and waits % 4398046511104 or waits -- it has a priority
  local is_admitted = waits and waits <= now and uses_any('tickets') and redis.call('ZSCORE', tickets, id) -- its place is in the line
  local leased = not waits and redis.call('ZSCORE', active, id)
  local ends = redis.call('ZSCORE', expiry, id)
  local first_place = math.min(now, tonumber(string.sub(id, 1, -12)))
  if ends and tonumber(ends) <= now then
    return -3
  elseif not waits and not leased then
    return (redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1) and -2 or 0
  elseif waits and uses_any('notes') and string.find(redis.call('HGET', tally, 'n' .. id) or '', '^%d+ %d+ %d+ %d+ c') then
    return -2 -- it waits for jobs that it has called
  elseif waits and (is_admitted or uses_any('dedup') and waits_for_another(id) or waits <= first_place) then
    return -2
  end
  returned[#returned + 1] = id
  returned[#returned + 1] = first_place
  if leased then
    end_delivery(id)
  end
  return 1
end
local codes, refused = decide_each(decide)
redis.call('ZCARD', once)
redis.call('ZCARD', active)
--@include lib/return/prepare_return
--@include lib/return/write_return
--@include lib/return/wake_returned
if #returned > 0 then
  wake_returned(write_return(returned, {}, {}, new_counters, {}))
end
if #returned > 0 then
  redis.call('HINCRBY', meta, 'promoted', #returned / 2)
  for i = 1, uses_any('notes') and #returned or 0, 2 do
    local head = redis.call('HGET', tally, 'n' .. returned[i])
    local name = head and string.match(head, '^%d+ %d+ %d+ %d+ %d+ (.*)$')
    if name then
      --@include lib/return/end_wait
      end_wait(returned[i], head, name, 't', '')
    end
  end
  for i = 1, uses_any('batches') and #returned or 0, 2 do
    local entry = redis.call('HGET', batches, returned[i])
    if entry and string.find(entry, ' [01]$') then -- a callback that does not wait for its batch any more, nor has a deadline
      redis.call('ZREM', expiry, returned[i])
      redis.call('HSET', batches, returned[i], string.sub(entry, 1, -2) .. '2')
    end
  end
end
if not refused then
  return {1, nonce, #returned / 2}
end
return {1, nonce, #returned / 2, unpack(codes)}
