--- Remove a queue: its jobs, its settings, its schedules and the promises of staged writes. Workers that run store the
--- schedules that they declare again (protocol/schedules.md).
--- KEYS     @queue
--- ARGV     nonce
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, epoch, jobs}       epoch: of the removed queue, for its entry in the registry; '' = there was no
---                                        queue; jobs: the number of its jobs
---          {-6, nonce, version}          written by a newer protocol
--- FROM ready, scheduled, active, dead  TO none
--@include lib/checks/check_version
--@include lib/meta/now
local jobs = redis.call('XLEN', ready)
for _, index in ipairs({active, scheduled, parked, once, dead}) do
  jobs = jobs + redis.call('ZCARD', index)
end
redis.call('ZCARD', urgent)
redis.call('ZCARD', expiry)
redis.call('ZCARD', windows)
redis.call('XLEN', finished)
redis.call('ZCARD', ticks)
redis.call('ZCARD', tickets)
redis.call('ZCARD', turns)
redis.call('ZCARD', paces)
redis.call('ZCARD', holds)
redis.call('HLEN', history)
for _, map in ipairs({held, tally, dedup, schedules, members, batches}) do
  redis.call('HLEN', map)
end
for _, tokens in ipairs({wake, space}) do
  redis.call('LLEN', tokens)
end
redis.call('HDEL', held, '-')
-- finished ends by its time to live: its ids go on, and a repeat does not remove the entry of the first call
redis.call('UNLINK', ready, held, active, scheduled, urgent, once, dead, tally, expiry, members, batches, dedup, windows, meta, wake, space, writes, ticks, schedules, parked, tickets, turns, paces, holds, history)
if uses_any('awaited') then -- clients wait for results: all of them look again
  --@include lib/finish/add_entry
  add_entry('*')
end
return {1, nonce, epoch or '', jobs}
