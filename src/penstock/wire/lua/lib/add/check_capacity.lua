-- Refuse jobs that need more room than the queue has. Then note the producer's wait, and remove expired jobs. A job that
-- waits for other jobs takes no room: its score in scheduled is 2^53 - 1.
--- KEYS   ready held scheduled meta space parked
--- NEEDS  nonce limit space_empty waiting room_needed wait created now full role expired remove_expired write_dedup_and_wake
---        change changes
--- SETS   space_empty waiting
if limit then
  space_empty = redis.call('LLEN', space) == 0
  local function count_waiting()
    local timed = redis.call('ZCOUNT', scheduled, '-inf', '(9007199254740991')
    return redis.call('XLEN', ready) + timed + redis.call('ZCARD', parked)
  end
  waiting = count_waiting()
  if waiting + room_needed > limit then
    local waits = tonumber(wait) > 0 and created == 0 and now + wait > full
    if waits or role ~= '' or #expired.ids + #expired.once > 0 then
      redis.call('HDEL', held, '-') -- passes on a full server
    end
    -- expired jobs may take up the room
    remove_expired(expired)
    write_dedup_and_wake()
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
end
