-- Whether jobs may be added at all, and how many; what has lapsed is looked up.
local created = 0
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch = create
  created = 1
end
if paused == 'in' or paused == 'all' then
  return {-4, nonce, paused}
end
local limit = tonumber(m[8])
if tonumber(bound) and (not limit or tonumber(bound) < limit) then
  limit = tonumber(bound)
end
local asleep, hungry = redis.call('LLEN', wake) == 0, false
local waiting = 0
--@include lib/claims
--@include lib/lapsed
