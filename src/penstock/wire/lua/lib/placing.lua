-- Before jobs are put back or buried: every key that will be written is of its type.
redis.call('ZCARD', scheduled)
redis.call('ZCARD', dead)
redis.call('HLEN', tally)
redis.call('ZCARD', expiry)
local asleep = redis.call('LLEN', wake) == 0
--@include lib/closed
--@include lib/claims
if bequeath then
  bequeath(fallen, false)
end
