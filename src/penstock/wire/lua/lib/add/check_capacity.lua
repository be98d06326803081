-- check_capacity(limit, room_needed, expired) refuses jobs that need more room than the queue has. Then it notes the producer's wait, and
-- removes expired jobs. It returns the refusal or nil, how many jobs wait, and if the space token is missing. A job
-- that waits for other jobs takes no room: its score in scheduled is 2^53 - 1.
--- KEYS   ready held scheduled meta space parked
--- NEEDS  now change changes created full nonce remove_expired role wait write_ends_and_wake
--- GIVES  check_capacity
local function check_capacity(limit, room_needed, expired)
  local space_empty = redis.call('LLEN', space) == 0
  local function count_waiting()
    local timed = redis.call('ZCOUNT', scheduled, '-inf', '(9007199254740991')
    return redis.call('XLEN', ready) + timed + redis.call('ZCARD', parked)
  end
  local waiting = count_waiting()
  if waiting + room_needed > limit then
    local waits = tonumber(wait) > 0 and created == 0 and now + wait > full
    if waits or role ~= '' or #expired.ids + #expired.once > 0 then
      redis.call('HDEL', held, '-') -- passes on a full server
    end
    -- expired jobs may take up the room
    remove_expired(expired)
    write_ends_and_wake()
    if #expired.ids > 0 and space_empty and full > now and count_waiting() < limit then
      redis.call('RPUSH', space, '1')
    end
    if waits then
      change('full', now + wait)
    end
    if #changes > 0 and (waits or role ~= '' or #expired.ids + #expired.once > 0) then
      redis.call('HSET', meta, unpack(changes))
    end
    return {-3, nonce, waiting, limit, #expired.ids}
  end
  return nil, waiting, space_empty
end
