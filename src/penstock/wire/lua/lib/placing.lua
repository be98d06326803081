-- Before jobs are put back or buried: every key that will be written is of its type.
--- NEEDS  ready held active scheduled dead tally expiry wake dedup windows fallen now paused uses
--- GIVES  asleep drop_bodies wake_drained write_dedup
redis.call('ZCARD', scheduled)
redis.call('ZCARD', dead)
redis.call('HLEN', tally)
redis.call('ZCARD', expiry)
local asleep = redis.call('LLEN', wake) == 0
--@include lib/check_closed
--@include lib/drop_bodies
--@include lib/release_dedup
release_dedup(fallen, false)
