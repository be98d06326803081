-- A look gives back memory, too: it removes the lapsed. HDEL first, it passes on a full server.
--- NEEDS  ready held active scheduled once tally expiry meta wake space dedup windows lapsed full now spent bequeath
---        drop_bodies heir_asleep heirs known lapse loose open paused touched unlisted untold
local roomless = #lapsed > 0 and (tonumber(full) or 0) > now and redis.call('LLEN', space) == 0
if #lapsed + #spent > 0 then
  redis.call('HDEL', held, '-')
  --@include lib/expire
  --@include lib/bequests
  --@include lib/heir
  --@include lib/drained
  if roomless then
    redis.call('RPUSH', space, '1')
  end
end
