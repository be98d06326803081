--- Close the queue, as the producer.
--- KEYS     bound producer producer_free closed
--- ARGV     nonce id
---          id  who closes
--- RETURNS  {1, nonce}          closed
---          {-1, nonce}         no queue
---          {-2, nonce}         it was closed
---          {-5, nonce, party}  another party has the role; party: its id, '' = not known
local limit, last = redis.call('GET', bound), redis.call('GET', producer)
local shut, tokens = redis.call('LLEN', closed), redis.call('LLEN', producer_free)
if not limit then
  return {-1, nonce}
end
if shut > 0 then
  return {-2, nonce}
end
if tokens == 0 then
  return {-5, nonce, last or ''}
end
redis.call('LTRIM', producer_free, 0, 0)
redis.call('SET', producer, id)
redis.call('LPUSH', closed, '0', '0')
return {1, nonce}
