-- A look gives back memory, too: at most 100 jobs whose ttl has ended. HDEL first, it passes on a full server.
--@include lib/closed
--@include lib/claims
--@include lib/lapsed
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
