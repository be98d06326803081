-- A full queue: n more jobs do not fit. What waits for room is noted, and what has lapsed is removed.
--- NEEDS  ready held active scheduled once tally expiry meta space nonce limit hungry waiting n wait created now full
---        role lapsed spent write_dedup_and_wake change changes drop_bodies elsewhere front stood unlisted
--- SETS   hungry waiting elsewhere
if limit then
  hungry = redis.call('LLEN', space) == 0
  waiting = redis.call('XLEN', ready) + redis.call('ZCARD', scheduled)
  if waiting + n > limit then
    local waits = tonumber(wait) > 0 and created == 0 and now + wait > full
    if waits or role ~= '' or #lapsed + #spent > 0 then
      redis.call('HDEL', held, '-') -- nothing is added, so a full server lets it pass
    end
    -- room may be held by jobs whose ttl has ended
    --@include lib/expire
    write_dedup_and_wake()
    if #lapsed > 0 and hungry and full > now and redis.call('XLEN', ready) + redis.call('ZCARD', scheduled) < limit then
      redis.call('RPUSH', space, '1')
    end
    if waits then
      change('full', now + wait)
    end
    if #changes > 0 and (waits or role ~= '' or #lapsed + #spent > 0) then
      redis.call('HSET', meta, unpack(changes))
    end
    return {-3, nonce, waiting, limit, #lapsed}
  end
end
