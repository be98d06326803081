--- Look at the newest message, as the producer.
--- KEYS     queue bound holder free closed
--- ARGV     nonce id held
---          id    the party that looks
---          held  2: the caller has just popped the token of the role; 0: it has not
--- RETURNS  {1, nonce, found...}  found: the newest message, or nothing where none waits; the role is free
---          {0, nonce}            the caller does not hold the role any more; nothing was done
---          {-1, nonce}           no queue
---          {-2, nonce}           closed, and no message is left
---          {-5, nonce, party}    another party has the role; party: its id, '' = not known
local limit, shut = redis.call('GET', bound), redis.call('LLEN', closed)
local found = redis.call('LRANGE', queue, 0, 0)
--@include pressure/lib/role
if not limit then
  give_back()
  return {-1, nonce}
end
if shut > 0 and #found == 0 then
  give_back()
  return {-2, nonce}
end
if held ~= '0' and not is_ours then
  return {0, nonce}
end
if tokens == 0 and not is_ours then
  return {-5, nonce, last or ''}
end
redis.call('LTRIM', free, 0, 0)
redis.call('SET', holder, id)
give_back()
return {1, nonce, unpack(found)}
