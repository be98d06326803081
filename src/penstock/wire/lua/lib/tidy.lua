-- A look gives back memory, too: it removes the lapsed. HDEL first, it passes on a full server.
--- NEEDS  ready held active scheduled once tally expiry meta space lapsed full now spent write_dedup_and_wake
---        wake_drained drop_bodies elsewhere front stood unlisted
--- SETS   elsewhere
local roomless = #lapsed > 0 and (tonumber(full) or 0) > now and redis.call('LLEN', space) == 0
if #lapsed + #spent > 0 then
  redis.call('HDEL', held, '-')
  --@include lib/expire
  write_dedup_and_wake()
  wake_drained()
  if roomless then
    redis.call('RPUSH', space, '1')
  end
end
