--- Free a role whose holder is gone, and restore the token of room if the holder had it.
--- KEYS     queue bound holder free idle not_full closed
--- ARGV     nonce role
---          role  producer or consumer
--- RETURNS  {1, nonce}   it was taken
---          {0, nonce}   it was free
---          {-1, nonce}  no queue, and no lists of one
local limit, length = redis.call('GET', bound), redis.call('LLEN', queue)
local tokens, others = redis.call('LLEN', free), redis.call('LLEN', idle)
local space = redis.call('LLEN', not_full)
if not limit and redis.call('EXISTS', queue, free, idle, not_full, closed) == 0 then
  return {-1, nonce}
end
if tokens > 0 then
  return {0, nonce}
end
redis.call('LTRIM', free, 0, 0)
redis.call('DEL', holder)
redis.call('LPUSH', free, '0')
local most = tonumber(limit)
-- Only a working producer may have the token.
if most and space == 0 and (most == 0 or length < most) and (role == 'producer' or others > 0) then
  redis.call('LPUSH', not_full, '0')
end
return {1, nonce}
