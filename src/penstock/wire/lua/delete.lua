--- Remove jobs in any state. A delivery ends, and its holder's receipt is stale.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch full seen off uses paused
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled, active, dead  TO none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/check_numbers
--@include lib/checks/decide_each
local found = {}
local function decide(id)
  if redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1 then
    found[#found + 1] = id
    return 1
  end
  return 0
end
local codes, refused = decide_each(decide)
for _, index in ipairs({active, scheduled, once, dead, expiry}) do
  redis.call('ZCARD', index)
end
redis.call('HLEN', tally)
redis.call('XLEN', ready)
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/deliver/wake_after_ends
release_dedup(found, false)
local wants_room = full > now and redis.call('LLEN', space) == 0
--@include lib/finish/remove_waiting
if #found > 0 then
  redis.call('HDEL', held, '-')
  for _, index in ipairs({active, once, dead}) do
    redis.call('ZREM', index, unpack(found))
  end
  remove_waiting(found, 'deleted')
end
if not refused then
  return {1, nonce, #found}
end
return {1, nonce, #found, unpack(codes)}
