-- add_active(pairs) adds deliveries to active: score and number of each.
--- KEYS   active
--- GIVES  add_active
local function add_active(pairs)
  if #pairs < 32 then
    redis.call('ZADD', active, unpack(pairs))
  else
    -- A member above 64 bytes makes the server keep a skiplist: adding to a listpack costs the square of the batch.
    local long = string.rep('~', 65)
    redis.call('ZADD', active, 0, long, unpack(pairs))
    redis.call('ZREM', active, long)
  end
end
