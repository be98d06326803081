-- Remove deliveries that check_first_deliveries has found valid. HDEL comes first: it passes on a full server. `removed` counts a
-- job that was named twice once.
--- KEYS   held active
--- NEEDS  done common_score
--- SETS   removed
removed = redis.call('HDEL', held, unpack(done))
if common_score then
  redis.call('ZREMRANGEBYSCORE', active, common_score, common_score)
else
  redis.call('ZREM', active, unpack(done))
end
