-- Add deliveries to active: active_pairs = {score, number, ...}.
--- NEEDS  active active_pairs
if #active_pairs < 32 then
  redis.call('ZADD', active, unpack(active_pairs))
else
  -- A member above 64 bytes makes the server keep a skiplist: adding to a listpack costs the square of the batch.
  local long = string.rep('~', 65)
  redis.call('ZADD', active, 0, long, unpack(active_pairs))
  redis.call('ZREM', active, long)
end
