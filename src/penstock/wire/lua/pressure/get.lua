--- Take the oldest message, as the consumer.
--- KEYS     queue bound holder free not_full closed messages bytes
--- ARGV     nonce id held wait
---          id    of the party
---          held  1: the caller has held the role since an earlier call; 2: it has just popped the token of the role; 0: neither
---          wait  1: keep the role if there is no message
--- RETURNS  {1, nonce, message}  taken, and the role is free
---          {2, nonce}           no message; the caller holds the role
---          {0, nonce}           the caller does not hold the role any more; nothing was done
---          {-1, nonce}          no queue
---          {-2, nonce}          closed, and no message is left
---          {-4, nonce}          no message
---          {-5, nonce, party}   another party has the role; party: its id, '' = not known
---          {-8, nonce}          damaged: a bound or counter is no number
local limit = redis.call('GET', bound)
local closings = redis.call('LLEN', closed)
local length, space = redis.call('LLEN', queue), redis.call('LLEN', not_full)
local ended = false -- a closed queue may still have messages
--@include pressure/lib/check_role (gives: give_back)
--@include pressure/lib/check_counters
redis.call('LTRIM', free, 0, 0)
redis.call('SET', holder, id)
if length == 0 then
  if closings > 0 then
    give_back()
    return {-2, nonce}
  end
  if wait == '1' then
    redis.call('DEL', free)
    return {2, nonce}
  end
  give_back()
  return {-4, nonce}
end
local message = redis.call('RPOP', queue)
length = length - 1
redis.call('INCR', messages)
redis.call('INCRBY', bytes, #message)
--@include pressure/lib/mend_not_full
give_back()
return {1, nonce, message}
