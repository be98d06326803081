--- Put a message, as the producer.
--- KEYS     queue bound holder free idle not_full closed messages bytes
--- ARGV     nonce id held wait overfill lost message
---          id        of the party
---          held      1: the caller has held the role since an earlier call; 2: it has just popped the token of the role; 0: neither
---          wait      1: keep the role if there is no room
---          overfill  1: put the message also if there is no room
---          lost      1: there has been room without a token for a while, so the token was lost
---          message   the bytes
--- RETURNS  {1, nonce}          put, and the role is free
---          {2, nonce}          no room; the caller holds the role
---          {0, nonce}          the caller does not hold the role any more; nothing was done
---          {-1, nonce}         no queue
---          {-2, nonce}         closed
---          {-3, nonce}         no room
---          {-5, nonce, party}  another party has the role; party: its id, '' = not known
---          {-8, nonce}         damaged: a bound or counter is no number
local limit = redis.call('GET', bound)
local closings = redis.call('LLEN', closed)
local length, space = redis.call('LLEN', queue), redis.call('LLEN', not_full)
local ended = closings > 0
--@include pressure/lib/check_role (gives: give_back)
--@include pressure/lib/check_counters (gives: most)
-- If both roles are free, no party holds the token: it was lost.
local fits = most == 0 or length < most
local is_free = most == 0 or space > 0 or lost == '1' or redis.call('LLEN', idle) > 0
if overfill ~= '1' and not (fits and is_free) then
  redis.call('LTRIM', free, 0, 0)
  redis.call('SET', holder, id)
  if not fits and space > 0 then
    redis.call('DEL', not_full)
  end
  if wait == '1' then
    redis.call('DEL', free)
    return {2, nonce}
  end
  give_back()
  return {-3, nonce}
end
redis.call('SET', holder, id)
length = redis.call('LPUSH', queue, message)
redis.call('INCR', messages)
redis.call('INCRBY', bytes, #message)
--@include pressure/lib/mend_not_full
give_back()
return {1, nonce}
