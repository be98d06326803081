--- Take or renew an exclusive role of a queue under a lease: its only producer, or its only consumer.
--- KEYS     @queue
--- ARGV     nonce create kind token fence lease owner
---          create  '' = only if the queue exists; 8 hex = registered, may be made with this epoch
---          kind    producer or consumer
---          token   16 random hex digits, new for each taking: a repeated call finds that it has the role
---          fence   '' = take the role; else the number of this taking: renew it, unless it has ended
---          lease   ms from now, at least 1; each call that passes the role restarts it
---          owner   the client that takes it, as in reserve
--- BOUNDS   fence? 0 9007199254740991
--- META     v epoch seen off uses full producer consumer
--- RETURNS  {1, nonce, fence, epoch, created}  taken, or renewed; fence: number of the taking, higher than all before
---          {-5, nonce}                   no such queue: register it, then create
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-15, nonce, kind, owner, left}  another client has it, for so many ms unless it is renewed
---          {-16, nonce, kind}            this taking has ended
---          {-19, nonce, name, value}     malformed argument: owner, kind, token, lease or create
--@include lib/checks/check_version
--@include lib/checks/check_owner
--@include lib/checks/check_kind
if #token ~= 16 or string.find(token, '[^%da-f]') then
  return {-19, nonce, 'token', string.sub(token, 1, 200)}
end
local created = 0
--@include lib/meta/now (gives: changes, time, change)
--@include lib/checks/is_lease
--@include lib/meta/use
if not is_lease(lease, 1) then
  return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
end
local before = (kind == 'producer' and producer or kind == 'consumer' and consumer) or ''
local id, ends, span, holder = string.match(before, '^(%S+) (%d+) (%d+) (.*)$')
--@include lib/checks/time_left
local left, ours = time_left(ends, span), nil
local runs = left > 0
if fence ~= '' then
  ours = fence .. '-' .. token
  if not runs or id ~= ours then
    return {-16, nonce, kind}
  end
elseif runs and string.match(id, '%x*$') ~= token then
  return {-15, nonce, kind, holder, left}
end
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch, created = create, 1
  --@include lib/checks/check_create
  --@include lib/meta/create_queue
end
if runs then
  fence = string.match(id, '^%d+')
else -- at least the time in us: so numbers rise over all lives of the queue, also with several takings in a ms
  fence = string.format('%.0f', math.max(now * 1000 + time[2] % 1000, (tonumber(string.match(before, '^%d+')) or 0) + 1))
end
change(kind, fence .. '-' .. token .. ' ' .. string.format('%.0f', now + lease) .. ' ' .. lease .. ' ' .. owner)
use('roles')
local wake_empty, space_empty = redis.call('LLEN', wake) == 0, redis.call('LLEN', space) == 0
redis.call('HDEL', held, '-')
redis.call('HSET', meta, unpack(changes))
-- Clients that wait without the role are refused from now on: wake one.
if not runs and kind == 'consumer' and wake_empty then
  redis.call('RPUSH', wake, '1')
elseif not runs and kind == 'producer' and space_empty and full > now then
  redis.call('RPUSH', space, '1')
end
return {1, nonce, fence, epoch, created}
