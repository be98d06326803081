--- Delete the queue: at once if both roles are free, otherwise in steps.
--- KEYS     queue bound producer consumer producer_free consumer_free not_full closed produced_messages produced_bytes consumed_messages consumed_bytes stats_produced_messages stats_produced_bytes stats_consumed_messages stats_consumed_bytes
--- ARGV     nonce step mark
---          step  begin; end: finish what begin began; adopt: finish the deletion of a party that is gone
---          mark  sentinels that identify this deletion
--- RETURNS  {1, nonce}                deleted, by this party or another
---          {-1, nonce}               no queue
---          {-5, nonce, role, party}  begun, and a role is taken; party: the last that had it, '' = not known
---          {-7, nonce}               no queue, but lists of one: a deletion has not ended; or this one, but its sentinels were taken
local limit = redis.call('GET', bound)
local puts, gets = redis.call('LLEN', producer_free), redis.call('LLEN', consumer_free)
local who_puts, who_gets = redis.call('GET', producer), redis.call('GET', consumer)
local space, sentinels = redis.call('LLEN', not_full), redis.call('LRANGE', closed, 0, 15)
local left = redis.call('EXISTS', queue, producer_free, consumer_free, not_full, closed)
if step == 'begin' or step == 'adopt' then
  if step == 'adopt' and (limit or left == 0) or step == 'begin' and not limit and left == 0 then
    return {-1, nonce}
  end
  if step == 'begin' and not limit then
    return {-7, nonce}
  end
  if step == 'begin' then
    redis.call('DEL', bound)
    redis.call('LPUSH', closed, mark, mark)
    if space == 0 then
      redis.call('LPUSH', not_full, '0')
    end
    limit = false
  end
else
  local is_ours = false
  for _, sentinel in ipairs(sentinels) do
    is_ours = is_ours or sentinel == mark
  end
  -- A party that takes the role pops at most one sentinel. A party that does not may pop both.
  if not is_ours and not limit and left > 0 then
    return {-7, nonce}
  end
  if not is_ours then
    return {1, nonce}
  end
end
if puts == 0 then
  return {-5, nonce, 'producer', who_puts or ''}
end
if gets == 0 then
  return {-5, nonce, 'consumer', who_gets or ''}
end
redis.call('DEL', queue, producer, consumer, not_full, closed,
  produced_messages, produced_bytes, consumed_messages, consumed_bytes,
  stats_produced_messages, stats_produced_bytes, stats_consumed_messages, stats_consumed_bytes)
if limit then
  -- Another party has created the queue again without this check: complete it.
  redis.call('LTRIM', producer_free, 0, 0)
  redis.call('LTRIM', consumer_free, 0, 0)
  redis.call('LPUSH', not_full, '0')
else
  redis.call('DEL', producer_free, consumer_free)
end
return {1, nonce}
