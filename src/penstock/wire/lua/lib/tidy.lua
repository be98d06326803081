-- A look gives back memory, too: at most 100 jobs whose ttl has ended. HDEL first, it passes on a full server.
--@include lib/claims
--@include lib/lapsed
local roomless = #lapsed > 0 and (tonumber(full) or 0) > now and redis.call('LLEN', space) == 0
if #lapsed + #spent > 0 then
  local asleep = not bequeath or redis.call('LLEN', wake) == 0
  redis.call('HDEL', held, '-')
  --@include lib/expire
  --@include lib/bequests
  local token = heir_token and heir_token <= now and paused ~= 'out' and paused ~= 'all'
  --@include lib/wake
  if roomless then
    redis.call('RPUSH', space, '1')
  end
end
