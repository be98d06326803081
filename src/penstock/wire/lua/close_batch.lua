--- Close a batch: no more members join it. Its callback waits for those that have not ended, or is due at once.
--- KEYS     @queue
--- ARGV     nonce wanted number
---          number  of the callback
--- META     v epoch seen off uses paused
--- RETURNS  {1, nonce, state}             closed, now or before; state: as in list_batches
---          {0, nonce}                    no such batch: its callback has ended
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/is_number
if not is_number(number) then
  return {-19, nonce, 'number', string.sub(number, 1, 200)}
end
--@include lib/batches/batch_state
local has_urgent = uses_any('priorities')
--@include lib/finish/notify_ended
--@include lib/batches/count_members (gives: fired)
local entry, state = batch_state(number, redis.call('HGET', batches, number))
if not entry then
  return {0, nonce}
end
redis.call('ZCARD', dead)
redis.call('HLEN', tally)
local wake_empty = redis.call('LLEN', wake) == 0
redis.call('HDEL', held, '-')
if state == 'open' then
  redis.call('ZREM', expiry, number)
  redis.call('ZADD', scheduled, '9007199254740991', number)
  redis.call('HSET', batches, number, string.sub(entry, 1, -2) .. '0')
  count_members({}, 'open', number)
  entry, state = batch_state(number, redis.call('HGET', batches, number))
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
if fired and not paused and wake_empty then
  redis.call('RPUSH', wake, '1')
end
return {1, nonce, state}
