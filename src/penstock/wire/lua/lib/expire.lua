-- Remove the lapsed, whatever state they are in, and count them. Those at the head of ready are in no other place. They are trimmed:
-- a deletion by number costs several times as much.
--- NEEDS  ready held active scheduled once tally expiry meta drop_bodies lapsed front stood elsewhere unlisted now spent
--- SETS   elsewhere
drop_bodies(lapsed)
if #lapsed > 0 then
  local trimmed = front == '-' and 0 or redis.call('XTRIM', ready, 'MINID', front)
  if trimmed ~= stood then -- some of them were not there
    elsewhere = lapsed
  end
  if #elsewhere > 0 then
    redis.call('HDEL', held, unpack(elsewhere))
    redis.call('XDEL', ready, unpack(elsewhere))
    local unfinished = redis.call('ZREM', active, unpack(elsewhere))
    if unfinished > 0 then
      redis.call('HINCRBY', meta, 'expired_active', unfinished)
    end
    redis.call('ZREM', scheduled, unpack(elsewhere))
    redis.call('HDEL', tally, unpack(elsewhere))
  end
  if unlisted then
    redis.call('ZREM', expiry, unpack(lapsed))
  else
    redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now)
  end
  redis.call('HINCRBY', meta, 'expired', #lapsed)
end
if #spent > 0 then
  redis.call('HDEL', held, unpack(spent))
  drop_bodies(spent)
  redis.call('ZREM', once, unpack(spent))
  redis.call('HDEL', tally, unpack(spent))
  redis.call('HINCRBY', meta, 'expired', #spent)
end
