-- Check if this producer may add jobs now: role, queue, and its settings.
--- KEYS   ready held meta space
--- NEEDS  change create epoch full nonce now paused role uses
--- SETS   epoch
--- GIVES  created
local created = 0
do
  local kind = 'producer'
  --@include lib/checks/check_role (gives: taken_by, left, lost)
  local closed = uses_any('closed')
  if (closed or lost or taken_by) and full > now and redis.call('LLEN', space) == 0 then
    redis.call('HDEL', held, '-') -- refused: wake the next producer that waits for room, too
    redis.call('RPUSH', space, '1')
  end
  if lost then
    return {-16, nonce, kind}
  end
  if not epoch then
    if redis.call('EXISTS', ready, held) > 0 then
      return {-8, nonce}
    elseif create == '' or #create > 8 then
      return {-5, nonce}
    end
    epoch = create
    created = 1
    --@include lib/checks/check_create
  end
  if closed then
    return {-14, nonce}
  elseif taken_by then
    return {-15, nonce, kind, taken_by, left}
  end
end
if paused == 'in' or paused == 'all' then
  return {-4, nonce, paused}
end
