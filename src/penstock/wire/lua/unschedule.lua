--- Remove a schedule. Jobs that it has added stay.
--- KEYS     @queue
--- ARGV     nonce name duplicate
---          duplicate  1 = another node keeps this schedule: the removal is not counted; '' or left out = it is
--- META     v seen off unscheduled
--- RETURNS  {1, nonce, left}              removed; left: number of other schedules
---          {0, nonce}                    there is no such schedule
---          {-6, nonce, version}          written by a newer protocol
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes, change)
redis.call('ZCARD', ticks)
if redis.call('HEXISTS', schedules, name) == 0 then
  return {0, nonce}
end
redis.call('HDEL', held, '-')
redis.call('HDEL', schedules, name)
redis.call('ZREM', ticks, name)
if v and duplicate ~= '1' then
  change('unscheduled', unscheduled + 1)
end
if v and #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
return {1, nonce, redis.call('HLEN', schedules)}
