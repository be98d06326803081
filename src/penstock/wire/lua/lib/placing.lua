-- Before jobs are put back or buried: every key that will be written is of its type.
--- NEEDS  ready held active scheduled dead tally expiry wake dedup windows fallen now uses
--- GIVES  asleep bequeath drop_bodies heirs known loose open touched untold
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
