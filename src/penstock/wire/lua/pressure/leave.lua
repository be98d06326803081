--- Give the role back, if the caller still holds it.
--- KEYS     holder free
--- ARGV     nonce id
---          id  who held it
--- RETURNS  {1, nonce}  given back
---          {0, nonce}  it was not the caller's
if redis.call('LLEN', free) > 0 or redis.call('GET', holder) ~= id then
  return {0, nonce}
end
redis.call('LTRIM', free, 0, 0)
redis.call('LPUSH', free, '0')
return {1, nonce}
