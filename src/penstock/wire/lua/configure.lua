--- Set, change or drop settings of a queue, pause included; stored on the queue, for clients in any language.
--- KEYS     ready held meta wake space
--- ARGV     nonce create [field value...]
---          create  as in enqueue: a queue may be configured before its first job
---          field   paused (in, out, all), lease, max_length, max_attempts, max_crashes, max_releases, backoff_base,
---                  backoff_cap, dead_max, dead_age; value '' drops the setting
--- RETURNS  {1, nonce, epoch, created}    stored
---          {-5, nonce}                   no such queue: register it, then create
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta
local m = redis.call('HMGET', meta, 'v', 'epoch')
--@include lib/version
local epoch, created = m[2], 0
local changes, drops = {}, {}
if not epoch then
  if create == '' then
    return {-5, nonce}
  end
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
  epoch, created = create, 1
  local time = redis.call('TIME')
  changes = {'v', '1', 'epoch', epoch, 'uses', '', 'seen', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000}
end
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    drops[#drops + 1] = ARGV[i]
  else
    changes[#changes + 1] = ARGV[i]
    changes[#changes + 1] = ARGV[i + 1]
  end
end
local asleep, hungry, token = redis.call('LLEN', wake) == 0, redis.call('LLEN', space) == 0, true
redis.call('HDEL', held, '-')
if #drops > 0 then
  redis.call('HDEL', meta, unpack(drops))
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
if #ARGV > 2 then -- whoever waits looks again: it may be resumed, or have more room
  --@include lib/wake
  if hungry then
    redis.call('RPUSH', space, '1')
  end
end
return {1, nonce, epoch, created}
