--- The jobs of a state, in order, without taking them: of ready in the order in which reserve would.
--- KEYS     ready held active scheduled once dead tally expiry meta
--- ARGV     nonce state start count
---          state  ready, scheduled, active (leased, then delivered at most once) or dead
---          start  0 to 1000 = how many to pass over
---          count  1 to 1000; about 1 MiB is answered and at most 8 MiB are read
--- RETURNS  {1, nonce, now, lease, epoch, job...}  job as in show
---          {-6, nonce, version}          written by a newer protocol
local m = redis.call('HMGET', meta, 'v', 'epoch', 'seen', 'off', 'lease')
--@include lib/version
local changes, seen, off = {}, tonumber(m[3]) or 0, tonumber(m[4]) or 0
--@include lib/now
--@include lib/facts
local reply, bytes, read = {1, nonce, now, tonumber(m[5]) or 30000, m[2] or ''}, 0, 0
local skip, left = tonumber(start), tonumber(count)
local function see(id, where, score, value)
  read = read + #value
  local job = facts(id, where, score, value)
  if job[2] == 'expired' then
    return
  elseif skip > 0 then
    skip = skip - 1
  elseif left > 0 and bytes < 1048576 then
    reply[#reply + 1] = job
    left, bytes = left - 1, bytes + #value
  end
end
local function seen_in(index, where, from, to)
  local scale = (index == active or index == once) and 4096 or 1
  local at = 0
  while left > 0 and bytes < 1048576 and read < 8388608 do
    local page = redis.call('ZRANGE', index, from, to, 'BYSCORE', 'LIMIT', at, 100, 'WITHSCORES')
    for i = 1, #page, 2 do
      local value = redis.call('HGET', held, page[i])
      if value then
        see(page[i], where, math.floor(page[i + 1] / scale), value)
      end
    end
    if #page < 200 then
      return
    end
    at = at + 100
  end
end
if state == 'ready' then
  seen_in(active, 'ready', '-inf', now * 4096 + 4095)
  local at, after, page, e, due, d = 0, '-', {}, 1, {}, 1
  local ended, drained = false, false
  while left > 0 and bytes < 1048576 and read < 8388608 do
    if d > #due and not ended then
      due, d = redis.call('ZRANGE', scheduled, '-inf', now, 'BYSCORE', 'LIMIT', at, 100, 'WITHSCORES'), 1
      at, ended = at + 100, #due < 200
    end
    if e > #page and not drained then
      page, e = redis.call('XRANGE', ready, after, '+', 'COUNT', 16), 1
      drained = #page < 16
      if #page > 0 then
        local last = page[#page][1]
        after = string.sub(last, 1, -11) .. string.format('%.0f', string.sub(last, -10) + 1)
      end
    end
    local id, entry = due[d], page[e]
    if id and entry then
      local own, score = tonumber(string.sub(entry[1], 1, -12)), tonumber(due[d + 1])
      if own < score or own == score and entry[1] < id then
        id = nil
      end
    end
    if id then
      local value = redis.call('HGET', held, id)
      if value then
        see(id, 'ready', due[d + 1], value)
      end
      d = d + 2
    elseif entry then
      see(entry[1], 'ready', string.sub(entry[1], 1, -12), entry[2][2])
      e = e + 1
    else
      break
    end
  end
elseif state == 'dead' then
  seen_in(dead, 'dead', '-inf', '+inf')
else
  local after = '(' .. string.format('%.0f', state == 'scheduled' and now or now * 4096 + 4095)
  if state == 'scheduled' then
    seen_in(scheduled, 'scheduled', after, '+inf')
  else
    seen_in(active, 'active', after, '+inf')
    seen_in(once, 'once', after, '+inf')
  end
end
return reply
