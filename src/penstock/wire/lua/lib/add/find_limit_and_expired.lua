-- Find how many jobs may wait (limit, nil = no bound), and the expired jobs, which may take up room; and if a wake token is there.
-- check_capacity compares the two. It also includes what removes expired jobs.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake parked
---        tickets turns paces holds
--- NEEDS  now alarm bound change max_length nothing paused seen score_of sweep_limit uses
--- SETS   uses
--- GIVES  keyed limit wake_empty drop_bodies expired has_urgent remove_expired write_ends write_ends_and_wake
local limit = tonumber(max_length)
if tonumber(bound) and (not limit or tonumber(bound) < limit) then
  limit = tonumber(bound)
end
--@include lib/deliver/slots (gives: free_slots)
--@include lib/deliver/rate (gives: spend)
local allowed_at = spend and spend(0) or 0
-- No token if the queue is full: the end of a delivery will add it; or if nothing may be delivered before allowed_at, and consumers learn of
-- that time by their polls, or one of them has a timer.
local wake_empty = redis.call('LLEN', wake) == 0 and (free_slots() or 1) > 0 and allowed_at <= now + 4000 and not (alarm > now and alarm <= allowed_at)
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/results/keep_results
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/remove_expired
