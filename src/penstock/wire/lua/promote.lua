--- Bring jobs forward: each may be delivered at once, at the place of its creation. A delivery of theirs ends.
--- KEYS     ready held active scheduled once dead tally expiry meta wake dedup windows
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch uses seen off paused alarm
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -2 ready at its place, dead, delivered at most once, or waiting for the
---                                        end of the job that has its dedup id, or of its window, -3 its ttl has ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM scheduled, active  TO scheduled
--@include lib/version
--@include lib/epoch
--@include lib/now
--@include lib/number
--@include lib/aside
local codes, back, fallen, recount, first, refused = {}, {}, {}, {}, {}, false
for i = 1, #numbers do
  local id = numbers[i]
  if not is_number(id) then
    return {-19, nonce, 'number', string.sub(id, 1, 200)}
  end
  local code = first[id]
  if not code then
    local waits = redis.call('ZSCORE', scheduled, id)
    local leased = not waits and redis.call('ZSCORE', active, id)
    local ends = redis.call('ZSCORE', expiry, id)
    local heir, first_place = false, math.min(now, tonumber(string.sub(id, 1, -12)))
    if waits and string.find(uses, 'd', 1, true) then -- it waits for the end of the job that has its dedup id
      local value = redis.call('HGET', held, id) or ''
      local name = string.match(string.match(value, '^@[^\n]*\n([^\n]*)') or value, '^[1+][^\n]-;d=([^;\n]+)')
      local owns = name and redis.call('HGET', dedup, name) or ''
      local ends = string.sub(owns, 1, #id) == id and tonumber(string.match(owns, ' @(%d+)$')) or 0
      heir = string.match(owns, '^%S+ (%d+%-%d+)') == id or ends > now
    end
    if ends and tonumber(ends) <= now then
      code = -3
    elseif heir or waits and tonumber(waits) <= first_place then
      code = -2
    elseif waits or leased then
      code = 1
      back[#back + 1] = id
      back[#back + 1] = first_place
      if leased then
        local d, rest = string.match(redis.call('HGET', tally, id) or '1 0 0 0', '^(%d+%+?)(.*)$')
        recount[#recount + 1] = id
        recount[#recount + 1] = aside(d) .. rest
      end
    else
      code = (redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1) and -2 or 0
    end
    first[id] = code
  end
  codes[#codes + 1], refused = code, refused or code < 1
end
redis.call('ZCARD', once)
redis.call('ZCARD', active)
--@include lib/placing
--@include lib/putback
if #back > 0 then
  redis.call('HINCRBY', meta, 'promoted', #back / 2)
end
if not refused then
  return {1, nonce, #back / 2}
end
return {1, nonce, #back / 2, unpack(codes)}
