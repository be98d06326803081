-- remove_expired() removes the expired jobs from every state, and counts them. It trims those at the head of ready,
-- which are in no other state: a deletion by number costs several times as much.
--- NEEDS  ready held active scheduled once expiry meta nothing expired expired_once drop_bodies bodies_left trim_to
---        head_expired other_expired more_expired now keep_results forget notify_ended batches count_members dead tally uses
--- SETS   other_expired expired expired_once
--- GIVES  remove_expired
local remove_expired = nothing
if #expired + #expired_once > 0 or bodies_left ~= '' then -- bodies_left: noted by an earlier call
  --@include lib/batches/abandon
  remove_expired = function()
    expired, other_expired, expired_once = abandon(expired), abandon(other_expired), abandon(expired_once)
    keep_results(expired, 'expired')
    keep_results(expired_once, 'expired')
    drop_bodies(expired)
    if #expired > 0 then
      local trimmed = trim_to == '-' and 0 or redis.call('XTRIM', ready, 'MINID', trim_to)
      if trimmed ~= head_expired then -- some were not in ready
        other_expired = expired
      end
      if #other_expired > 0 then
        redis.call('HDEL', held, unpack(other_expired))
        redis.call('XDEL', ready, unpack(other_expired))
        local unfinished = redis.call('ZREM', active, unpack(other_expired))
        if unfinished > 0 then
          redis.call('HINCRBY', meta, 'expired_active', unfinished)
        end
        redis.call('ZREM', scheduled, unpack(other_expired))
        forget(other_expired)
      end
      if more_expired then
        redis.call('ZREM', expiry, unpack(expired))
      else
        redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now)
      end
      redis.call('HINCRBY', meta, 'expired', #expired)
      notify_ended(expired)
      count_members(expired, 'failed')
    end
    if #expired_once > 0 then
      redis.call('HDEL', held, unpack(expired_once))
      drop_bodies(expired_once)
      redis.call('ZREM', once, unpack(expired_once))
      forget(expired_once)
      redis.call('HINCRBY', meta, 'expired', #expired_once)
      notify_ended(expired_once)
      count_members(expired_once, 'failed')
    end
  end
end
