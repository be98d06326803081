-- remove_expired(expired) removes the jobs that find_expired has found from every state, and counts them. Afterwards expired.ids and
-- expired.once are those that it has removed: abandoned batches keep theirs. It trims jobs at the head of ready, which are in no other
-- state: a deletion by number costs several times as much. If an earlier call has left large bodies to drop (bodies_left), it goes on
-- with them, also if nothing has expired.
--- KEYS   ready held active scheduled once dead tally expiry batches meta
--- NEEDS  now uses bodies_left keep_results drop_bodies forget notify_ended follow_deaths count_members
--- GIVES  remove_expired
local function remove_expired(expired)
  if #expired.ids + #expired.once == 0 and bodies_left == '' then
    return
  end
  --@include lib/batches/abandon
  local ids, others, from_once = abandon(expired.ids), abandon(expired.others), abandon(expired.once)
  expired.ids, expired.once = ids, from_once
  keep_results(ids, 'expired')
  keep_results(from_once, 'expired')
  drop_bodies(ids)
  if #ids > 0 then
    local trimmed = expired.trim_to == '-' and 0 or redis.call('XTRIM', ready, 'MINID', expired.trim_to)
    if trimmed ~= expired.head_count then -- some were not in ready
      others = ids
    end
    if #others > 0 then
      redis.call('HDEL', held, unpack(others))
      redis.call('XDEL', ready, unpack(others))
      local unfinished = redis.call('ZREM', active, unpack(others))
      if unfinished > 0 then
        redis.call('HINCRBY', meta, 'expired_active', unfinished)
      end
      redis.call('ZREM', scheduled, unpack(others))
      forget(others)
    end
    if expired.has_more then
      redis.call('ZREM', expiry, unpack(ids))
    else
      redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now)
    end
    redis.call('HINCRBY', meta, 'expired', #ids)
    notify_ended(ids)
    count_members(ids, 'failed')
  end
  if #from_once > 0 then
    redis.call('HDEL', held, unpack(from_once))
    drop_bodies(from_once)
    redis.call('ZREM', once, unpack(from_once))
    forget(from_once)
    redis.call('HINCRBY', meta, 'expired', #from_once)
    notify_ended(from_once)
    count_members(from_once, 'failed')
  end
end
