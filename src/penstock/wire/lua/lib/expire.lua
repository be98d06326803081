-- Remove the lapsed, whatever state they are in, and count them. Those at the head of ready are trimmed: a deletion by number
-- costs several times as much.
--- NEEDS  ready held active scheduled once tally expiry meta drop_bodies lapsed lapse unlisted now spent
drop_bodies(lapsed)
if #lapsed > 0 then
  redis.call('HDEL', held, unpack(lapsed))
  local from, border, bytes, expired = '-', '', 0, nil
  while border == '' and bytes < 1048576 do
    local entries = redis.call('XRANGE', ready, from, '+', 'COUNT', expired and 100 or 1)
    border = #entries == 0 and '~' or ''
    for i = 1, #entries do
      if not lapse[entries[i][1]] then
        border = entries[i][1]
        break
      end
      expired, bytes = entries[i][1], bytes + #entries[i][2][2]
    end
    from = expired and string.sub(expired, 1, -11) .. string.format('%.0f', string.sub(expired, -10) + 1)
  end
  if expired then
    redis.call('XTRIM', ready, 'MINID', from)
  end
  local inner = {}
  for i = 1, #lapsed do
    if lapsed[i] > border then
      inner[#inner + 1] = lapsed[i]
    end
  end
  if #inner > 0 then
    redis.call('XDEL', ready, unpack(inner))
  end
  local unfinished = redis.call('ZREM', active, unpack(lapsed))
  if unfinished > 0 then
    redis.call('HINCRBY', meta, 'expired_active', unfinished)
  end
  redis.call('ZREM', scheduled, unpack(lapsed))
  redis.call('HDEL', tally, unpack(lapsed))
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
