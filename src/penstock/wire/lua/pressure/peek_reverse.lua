--- Look at the newest message, as the producer.
--- KEYS     queue bound holder free closed
--- ARGV     nonce id held
---          id    the party that looks
---          held  2: the caller has just popped the token of the role; 0: it has not
--- RETURNS  {1, nonce, found...}  found: the newest message, or nothing if there is none; the role is free
---          {0, nonce}            the caller does not hold the role any more; nothing was done
---          {-1, nonce}           no queue
---          {-2, nonce}           closed, and no message is left
---          {-5, nonce, party}    another party has the role; party: its id, '' = not known
local limit, closings = redis.call('GET', bound), redis.call('LLEN', closed)
local found = redis.call('LRANGE', queue, 0, 0)
local ended = closings > 0 and #found == 0
--@include pressure/lib/check_role (gives: give_back)
redis.call('LTRIM', free, 0, 0)
redis.call('SET', holder, id)
give_back()
return {1, nonce, unpack(found)}
