-- drop_results(most) removes kept results whose time has ended, and those beyond the bounds of number and bytes, the
-- soonest end first, at most `most`. It returns how many it has removed.
--- NEEDS  held expiry meta now
--- GIVES  results_from drop_results
local results_from = 2251799813685248 -- 2^51: scores of kept results stand above every time
local function drop_results(most)
  local bounds = redis.call('HMGET', meta, 'results_max', 'results_bytes', 'kept_bytes')
  local first, bytes = string.format('%.0f', results_from), tonumber(bounds[3]) or 0
  local aged = redis.call('ZCOUNT', expiry, first, string.format('%.0f', results_from + now))
  local count = redis.call('ZCOUNT', expiry, first, '+inf')
  local max_count, max_bytes = tonumber(bounds[1]) or 10000, tonumber(bounds[2]) or 67108864
  if aged == 0 and count <= max_count and bytes <= max_bytes then
    return 0
  end
  local names = redis.call('ZRANGE', expiry, first, '+inf', 'BYSCORE', 'LIMIT', 0, most)
  local gone = {}
  for i = 1, #names do
    if i > aged and count <= max_count and bytes <= max_bytes then
      break
    end
    gone[i], count, bytes = names[i], count - 1, bytes - redis.call('HSTRLEN', held, names[i])
  end
  if #gone > 0 then
    redis.call('HDEL', held, unpack(gone))
    redis.call('ZREM', expiry, unpack(gone))
    redis.call('HSET', meta, 'kept_bytes', string.format('%.0f', count > 0 and math.max(bytes, 0) or 0))
  end
  return #gone
end
