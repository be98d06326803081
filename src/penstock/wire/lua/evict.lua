--- Make room on a full server: remove jobs that are never delivered again.
--- KEYS     @queue
--- ARGV     nonce count letters
---          count    1 to 1000: the most jobs, and about 64 MiB of large bodies; first jobs that were delivered at most once,
---                   the nearest end of ttl first, then dead letters, the oldest first
---          letters  1 = dead letters too, 0 = leave them
--- BOUNDS   count 1 1000
--- META     v seen off uses paused
--- RETURNS  {1, nonce, once, dead}        the number of removed jobs of each kind
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--- FROM active, dead  TO none
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now (gives: changes)
local most = tonumber(count)
local expired_once, old = redis.call('ZRANGE', once, 0, most - 1), {}
redis.call('ZCARD', dead)
if letters == '1' and #expired_once < most then
  old = redis.call('ZRANGE', dead, 0, most - #expired_once - 1)
end
redis.call('HLEN', tally)
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies (gives: has_large_bodies, bytes_left)
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup (gives: write_ends_and_wake)
local gone, bytes = {unpack(expired_once)}, 0
for i = 1, #old do
  gone[#gone + 1] = old[i]
end
for i = 1, has_large_bodies and #gone or 0 do -- no more jobs than the bodies that this call removes
  if bytes >= bytes_left then
    expired_once, old = {unpack(expired_once, 1, math.min(#expired_once, i - 1))}, {unpack(old, 1, i - 1 - #expired_once)}
    gone = {unpack(gone, 1, i - 1)}
    break
  end
  bytes = bytes + redis.call('HSTRLEN', held, '=' .. gone[i])
end
release_dedup(expired_once, false)
drop_bodies(gone)
if #gone > 0 then
  redis.call('HDEL', held, unpack(gone))
  redis.call('ZREM', once, unpack(gone))
  redis.call('ZREM', dead, unpack(gone))
  forget(gone)
  notify_ended(gone)
  count_members(gone, 'failed')
  write_ends_and_wake()
  redis.call('HINCRBY', meta, 'evicted', #expired_once + #old)
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  wake_after_ends()
end
return {1, nonce, #expired_once, #old}
