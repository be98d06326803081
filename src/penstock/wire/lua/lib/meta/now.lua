-- Read the queue's clock, see `clock`; gives what most scripts need with it.
--- NEEDS  seen off
--- GIVES  changes time nothing change raw now score_of end_of
--@include lib/meta/changes
local time = redis.call('TIME')
--@include lib/meta/clock
--@include lib/meta/scores
