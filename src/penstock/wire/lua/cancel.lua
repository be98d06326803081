--- Cancel jobs. A waiting job is removed. An active one is marked: its holder learns of it by beat and ends it; a nack, a
--- release or the end of the lease then removes it, and an ack that comes first wins.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch full seen off uses paused
--- RETURNS  {1, nonce, done}              all of them were removed
---          {1, nonce, done, code...}     1 removed, 4 active: marked, 0 gone, -2 dead, or delivered at most once; done: those
---                                        with code 1 or 4
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled, active  TO none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes, end_of)
--@include lib/checks/check_numbers
--@include lib/checks/decide_each
local found, marks = {}, {}
local function decide(id)
  local score = redis.call('ZSCORE', active, id)
  if score and end_of(score) > now then
    marks[#marks + 1] = 'c' .. id
    marks[#marks + 1] = string.format('%.0f', now)
    return 4
  elseif redis.call('ZSCORE', once, id) or redis.call('ZSCORE', dead, id) then
    return -2
  elseif score or redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1 then
    found[#found + 1] = id
    return 1
  end
  return 0
end
local codes, refused = decide_each(decide)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', expiry)
redis.call('HLEN', tally)
redis.call('XLEN', ready)
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/results/keep_results
--@include lib/dedup/release_dedup
--@include lib/deliver/wake_after_ends
release_dedup(found, false)
local wants_room = full > now and redis.call('LLEN', space) == 0
--@include lib/meta/use
if #marks > 0 then
  use('marks')
  redis.call('HDEL', held, '-')
  redis.call('HSET', tally, unpack(marks))
end
--@include lib/finish/remove_waiting
if #found > 0 then
  keep_results(found, 'cancelled')
  redis.call('HDEL', held, '-')
  redis.call('ZREM', active, unpack(found)) -- their leases have ended
  remove_waiting(found, 'cancelled')
elseif #marks > 0 and #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
if not refused and #marks == 0 then
  return {1, nonce, #found}
end
return {1, nonce, #found + #marks / 2, unpack(codes)}
