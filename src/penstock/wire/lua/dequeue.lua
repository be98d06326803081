--- Take jobs out of the queue for a while: each comes back after its own lease, as if nobody had spoken for it.
--- KEYS     ready held active scheduled once dead tally expiry meta wake dedup windows
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch uses seen off paused alarm lease
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -2 not due, held by somebody, dead or at most once, -3 its ttl has
---                                        ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled, active  TO scheduled
--@include lib/version
--@include lib/epoch
--@include lib/now
--@include lib/number
--@include lib/aside
--@include lib/terms
local codes, back, fallen, recount, first, refused, moved, left = {}, {}, {}, {}, {}, false, {}, {}
for i = 1, #numbers do
  local id = numbers[i]
  if not is_number(id) then
    return {-19, nonce, 'number', string.sub(id, 1, 200)}
  end
  local code = first[id]
  if not code then
    local entry = redis.call('XRANGE', ready, id, id)[1]
    local waits = not entry and redis.call('ZSCORE', scheduled, id)
    local leased = not entry and not waits and redis.call('ZSCORE', active, id)
    local ends = redis.call('ZSCORE', expiry, id)
    if ends and tonumber(ends) <= now then
      code = -3
    elseif entry or waits and tonumber(waits) <= now or leased and end_of(leased) <= now then
      local value = entry and entry[2][2] or redis.call('HGET', held, id) or ''
      local own, ttl = terms(string.match(value, '^@[^\n]*\n(.*)$') or value)
      code = own == 0 and -2 or 1
      if code == 1 then
        back[#back + 1] = id
        back[#back + 1] = now + span_of(own, ttl, lease)
        if entry then
          moved[#moved + 1], left[#left + 1] = id, id
          moved[#moved + 1] = value
        elseif leased then
          local d, rest = string.match(redis.call('HGET', tally, id) or '1 0 0 0', '^(%d+%+?)(.*)$')
          recount[#recount + 1] = id
          recount[#recount + 1] = aside(d) .. rest
        end
      end
    else
      code = redis.call('HEXISTS', held, id) == 1 and -2 or 0
    end
    first[id] = code
  end
  codes[#codes + 1], refused = code, refused or code < 1
end
redis.call('ZCARD', once)
redis.call('ZCARD', active)
redis.call('HLEN', held)
--@include lib/placing
if #moved > 0 then
  redis.call('HDEL', held, '-')
  redis.call('HSET', held, unpack(moved))
  redis.call('XDEL', ready, unpack(left))
end
--@include lib/putback
if #back > 0 then
  redis.call('HINCRBY', meta, 'dequeued', #back / 2)
end
if not refused then
  return {1, nonce, #back / 2}
end
return {1, nonce, #back / 2, unpack(codes)}
