-- expired_windows(limit) finds windows that have ended, at most so many. Their ids are free, or go to the jobs that waited. It returns
-- the ids, and a function that writes this; an earlier write of the script passes on a full server.
--- KEYS   dedup windows
--- NEEDS  uses now nothing
--- GIVES  expired_windows
local function expired_windows(limit)
  local names = uses_any('dedup') and redis.call('ZRANGE', windows, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit) or {}
  if #names == 0 then
    return names, nothing
  end
  local values, free_names, owned_names = redis.call('HMGET', dedup, unpack(names)), {}, {}
  for i = 1, #names do
    local number, ends = string.match(values[i] or '', '^(%S*) ?@(%d+)$')
    if ends and tonumber(ends) <= now then
      if number == '' then
        free_names[#free_names + 1] = names[i]
      else
        owned_names[#owned_names + 1] = names[i]
        owned_names[#owned_names + 1] = number
      end
    end
  end
  return names, function()
    redis.call('ZREM', windows, unpack(names))
    if #free_names > 0 then
      redis.call('HDEL', dedup, unpack(free_names))
    end
    if #owned_names > 0 then
      redis.call('HSET', dedup, unpack(owned_names))
    end
  end
end
