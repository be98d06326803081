-- Check the types of all keys that write_return writes, before jobs are put back or buried.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake parked
---        tickets turns paces holds
--- NEEDS  nothing now paused score_of seen uses
--- SETS   uses
--- GIVES  release_dedup keyed wake_empty drop_bodies has_urgent follow_deaths forget notify_ended count_members keep_results wake_after_ends
---        write_ends
redis.call('ZCARD', scheduled)
redis.call('ZCARD', dead)
redis.call('HLEN', tally)
redis.call('ZCARD', expiry)
local wake_empty = redis.call('LLEN', wake) == 0
--@include lib/deliver/wake_after_ends
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/results/keep_results
--@include lib/dedup/release_dedup
