--- Read the state of the queue. Nothing changes.
--- KEYS     queue bound producer_free consumer_free not_full closed produced_messages produced_bytes consumed_messages consumed_bytes
--- ARGV     nonce
--- RETURNS  {1, nonce, bound, length, closed, room, puts, gets, sums...}  closed, room, puts, gets: tokens in the lists closed, not_full,
---                                        producer_free, consumer_free; sums: the four counters, '0' = nothing yet
---          {-1, nonce, left, puts, gets}  no queue; left: the number of lists of one
local limit, length = redis.call('GET', bound), redis.call('LLEN', queue)
local puts, gets = redis.call('LLEN', producer_free), redis.call('LLEN', consumer_free)
if not limit then
  local left = redis.call('EXISTS', queue, producer_free, consumer_free, not_full, closed)
  return {-1, nonce, left, puts, gets}
end
local reply = {1, nonce, limit, length, redis.call('LLEN', closed), redis.call('LLEN', not_full), puts, gets}
for _, counter in ipairs({produced_messages, produced_bytes, consumed_messages, consumed_bytes}) do
  reply[#reply + 1] = redis.call('GET', counter) or '0'
end
return reply
