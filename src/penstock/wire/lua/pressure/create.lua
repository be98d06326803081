--- Create the queue.
--- KEYS     queue bound producer consumer producer_free consumer_free not_full closed produced_messages produced_bytes consumed_messages consumed_bytes stats_produced_messages stats_produced_bytes stats_consumed_messages stats_consumed_bytes
--- ARGV     nonce limit
---          limit  the most messages; 0 = no limit
--- BOUNDS   limit 0 9007199254740991
--- RETURNS  {1, nonce}   created
---          {-6, nonce}  it exists
---          {-7, nonce}  no queue, but lists of an earlier one: a deletion has not ended
---          {-19, nonce, name, value}  malformed argument
if redis.call('EXISTS', bound) == 1 then
  return {-6, nonce}
end
if redis.call('EXISTS', queue, producer_free, consumer_free, not_full, closed) > 0 then
  return {-7, nonce}
end
redis.call('SET', bound, limit)
redis.call('DEL', producer, consumer, produced_messages, produced_bytes, consumed_messages, consumed_bytes,
  stats_produced_messages, stats_produced_bytes, stats_consumed_messages, stats_consumed_bytes)
redis.call('LPUSH', producer_free, '0')
redis.call('LPUSH', consumer_free, '0')
redis.call('LPUSH', not_full, '0')
return {1, nonce}
