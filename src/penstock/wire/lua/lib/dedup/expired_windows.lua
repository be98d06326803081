-- Find windows that have ended, at most sweep_limit a call. Their ids are free, or go to the jobs that waited.
-- close_windows() writes that; an earlier write of the script passes on a full server.
--- KEYS   dedup windows
--- NEEDS  uses now sweep_limit nothing
--- GIVES  expired_windows close_windows
local expired_windows, close_windows = {}, nothing
if uses_any('dedup') then
  local free_names, owned_names = {}, {}
  expired_windows = redis.call('ZRANGE', windows, '-inf', now, 'BYSCORE', 'LIMIT', 0, sweep_limit)
  local values = #expired_windows > 0 and redis.call('HMGET', dedup, unpack(expired_windows)) or {}
  for i = 1, #expired_windows do
    local name = expired_windows[i]
    local number, ends = string.match(values[i] or '', '^(%S*) ?@(%d+)$')
    if ends and tonumber(ends) <= now then
      if number == '' then
        free_names[#free_names + 1] = name
      else
        owned_names[#owned_names + 1] = name
        owned_names[#owned_names + 1] = number
      end
    end
  end
  if #expired_windows > 0 then
    close_windows = function()
      redis.call('ZREM', windows, unpack(expired_windows))
      if #free_names > 0 then
        redis.call('HDEL', dedup, unpack(free_names))
      end
      if #owned_names > 0 then
        redis.call('HSET', dedup, unpack(owned_names))
      end
    end
  end
end
