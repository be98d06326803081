--- Remove jobs of a state up to a fence, in bounded steps: call again until none are left. A purge that begins with ready
--- ends the promises of staged writes.
--- KEYS     @queue
--- ARGV     nonce state fence skip
---          state  parked, ready (waiting in the stream), due, ended (leases), scheduled (due later), dependent (waiting for
---                 other jobs in scheduled), active, once (delivered at most once) or dead. Due and scheduled jobs with
---                 notes stay: they are half done
---          fence  '' in the first step: the queue's last number; then that of the first reply. Jobs above it stay, so a
---                 purge ends even if a producer goes on adding jobs
---          skip   '0' in the first step, then that of the last reply: how many jobs that stay were seen
--- BOUNDS   skip 0 9007199254740991
--- META     v last full seen off uses paused
--- RETURNS  {1, nonce, removed, more, fence, skip}  more: 1 = call again
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument: fence
--- FROM ready, scheduled, active, dead  TO none
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: score_of)
--@include lib/checks/is_number
local starts = fence == ''
if starts then
  fence = last or '0-0'
elseif fence ~= '0-0' and not is_number(fence) then
  return {-19, nonce, 'fence', string.sub(fence, 1, 200)}
end
local wants_room = full > now and redis.call('LLEN', space) == 0
for _, index in ipairs({active, scheduled, parked, once, dead, expiry}) do
  redis.call('ZCARD', index)
end
redis.call('HLEN', tally)
local removed, more, passed = 0, 0, tonumber(skip)
local over, index, low, high = string.format('%.0f', score_of(now, 4095)), nil, '-inf', '+inf'
if state == 'due' then
  index, high = scheduled, now
elseif state == 'scheduled' then
  index, low, high = scheduled, '(' .. string.format('%.0f', now), '(9007199254740991'
elseif state == 'dependent' then
  index, low = scheduled, '9007199254740991'
elseif state == 'ended' then
  index, high = active, over
elseif state == 'active' then
  index, low = active, '(' .. over
elseif state == 'once' then
  index, low = once, '(' .. over
elseif state == 'dead' then
  index = dead
elseif state == 'parked' then
  index = parked
end
--@include lib/finish/drop_bodies (gives: has_large_bodies, bodies_left)
--@include lib/finish/forget
--@include lib/finish/notify_ended (gives: keyed)
--@include lib/batches/count_members
--@include lib/dedup/release_dedup (gives: has_dedup)
--@include lib/deliver/wake_after_ends
--@include lib/finish/complete_removal
redis.call('HDEL', held, '-')
if index then
  local upto = redis.call('ZCOUNT', index, '-inf', high)
  local first = upto - redis.call('ZCOUNT', index, low, high) + passed
  local last = math.min(first + 999, upto - 1)
  local ids, old = first <= last and redis.call('ZRANGE', index, first, last) or {}, {}
  local is_begun = {}
  if uses_any('notes') and (state == 'due' or state == 'scheduled') and #ids > 0 then
    for i = 1, #ids do
      is_begun[i] = 'n' .. ids[i]
    end
    is_begun = redis.call('HMGET', tally, unpack(is_begun))
  end
  for i = 1, #ids do
    if ids[i] <= fence and not is_begun[i] then
      old[#old + 1] = ids[i]
    end
  end
  removed, more, passed = #old, #ids == 1000 and 1 or 0, passed + #ids - #old
  release_dedup(old, false)
  if #old > 0 then
    notify_ended(old) -- first: it looks for their keys in parked
    redis.call('ZREM', index, unpack(old))
    redis.call('HDEL', held, unpack(old))
    drop_bodies(old)
    forget(old)
    redis.call('ZREM', expiry, unpack(old))
    count_members(old, 'failed')
  end
elseif state ~= 'ready' then -- unknown state: remove nothing
  more = 0
elseif redis.call('ZCARD', expiry) == 0 and not has_dedup and not has_large_bodies and not keyed and not uses_any('batches') then
  local above = string.match(fence, '^%d+-') .. string.format('%.0f', string.match(fence, '%d+$') + 1)
  removed, more = redis.call('XTRIM', ready, 'MINID', '~', above, 'LIMIT', 2000), 1
  if removed == 0 then
    removed, more = redis.call('XTRIM', ready, 'MINID', above), 0
  end
else -- expiry, dedup, tickets and bodies need each number; read about 1 MiB
  local step, bytes, ids = 16, 0, {}
  while step > 0 and bytes < 1048576 and #ids < 1000 do
    local entries = redis.call('XRANGE', ready, '-', fence, 'COUNT', step)
    local part = {}
    for i = 1, #entries do
      part[i], ids[#ids + 1] = entries[i][1], entries[i][1]
      bytes = bytes + #entries[i][2][2]
    end
    release_dedup(part, false)
    if #part > 0 then
      redis.call('XDEL', ready, unpack(part))
      drop_bodies(part)
    end
    more = #part == step and 1 or 0
    step = more == 1 and math.min(1000 - #ids, math.floor((1048576 - bytes) * #ids / (bytes + 1))) or 0
  end
  removed = #ids
  if removed > 0 then
    redis.call('ZREM', expiry, unpack(ids))
    notify_ended(ids)
    count_members(ids, 'failed')
  end
end
drop_bodies({})
if bodies_left ~= '' then
  more = 1
end
if starts and state == 'ready' then
  redis.call('UNLINK', writes)
end
if removed > 0 then
  redis.call('HINCRBY', meta, 'purged', removed)
  complete_removal()
end
return {1, nonce, removed, more, fence, passed}
