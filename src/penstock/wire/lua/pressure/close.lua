--- Close the queue, as the producer.
--- KEYS     bound holder free closed
--- ARGV     nonce id held
---          id    of the party
---          held  2: the caller has just popped the token of the role; 0: it has not
--- RETURNS  {1, nonce}          closed, and the role is free
---          {0, nonce}          the caller does not hold the role any more; nothing was done
---          {-1, nonce}         no queue
---          {-2, nonce}         it was closed
---          {-5, nonce, party}  another party has the role; party: its id, '' = not known
local limit, closings = redis.call('GET', bound), redis.call('LLEN', closed)
local ended = closings > 0
--@include pressure/lib/check_role (gives: give_back)
redis.call('LTRIM', free, 0, 0)
redis.call('SET', holder, id)
redis.call('LPUSH', closed, '0', '0')
give_back()
return {1, nonce}
