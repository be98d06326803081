--- Take jobs out of the queue for the length of their leases. Each then comes back, unless a call has ended it.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch uses seen off paused alarm lease
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -2 not due, held under a lease, dead or at most once, -3 its ttl has
---                                        ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled, active  TO scheduled
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: end_of)
--@include lib/checks/check_numbers
--@include lib/checks/decide_each
--@include lib/return/end_delivery (gives: new_counters)
--@include lib/deliver/lease_terms (gives: lease_and_ttl, lease_span)
local returned, moved, left = {}, {}, {}
local function decide(id)
  local entry = redis.call('XRANGE', ready, id, id)[1]
  local waits = not entry and redis.call('ZSCORE', scheduled, id)
  local leased = not entry and not waits and redis.call('ZSCORE', active, id)
  local ends = redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    return -3
  elseif not (entry or waits and tonumber(waits) <= now or leased and end_of(leased) <= now) then
    return redis.call('HEXISTS', held, id) == 1 and -2 or 0
  end
  local value = entry and entry[2][2] or redis.call('HGET', held, id) or ''
  local own, ttl = lease_and_ttl(string.match(value, '^@[^\n]*\n(.*)$') or value)
  if own == 0 then
    return -2
  end
  returned[#returned + 1] = id
  returned[#returned + 1] = now + lease_span(own, ttl, lease)
  if entry then
    moved[#moved + 1], left[#left + 1] = id, id
    moved[#moved + 1] = value
  elseif leased then
    end_delivery(id)
  end
  return 1
end
local codes, refused = decide_each(decide)
redis.call('ZCARD', once)
redis.call('ZCARD', active)
redis.call('HLEN', held)
--@include lib/return/prepare_return
if #moved > 0 then
  redis.call('HDEL', held, '-')
  redis.call('HSET', held, unpack(moved))
  redis.call('XDEL', ready, unpack(left))
end
--@include lib/return/write_return
--@include lib/return/wake_returned
if #returned > 0 then
  wake_returned(write_return(returned, {}, {}, new_counters, {}))
end
if #returned > 0 then
  redis.call('HINCRBY', meta, 'dequeued', #returned / 2)
end
if not refused then
  return {1, nonce, #returned / 2}
end
return {1, nonce, #returned / 2, unpack(codes)}
