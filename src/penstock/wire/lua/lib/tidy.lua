-- A look gives back memory, too: it removes the lapsed. HDEL first, it passes on a full server.
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
