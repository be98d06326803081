-- Check if this producer may add jobs now, and find repeated calls.
--- KEYS   ready held meta space
--- NEEDS  nonce producer epoch replicas uses full create paused off role seen v before
--- SETS   epoch off
--- GIVES  seed raw now changes is_lease created change score_of end_of nothing
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes)
--@include lib/checks/is_lease
local seed
do -- few locals fit into a script
  --@include lib/add/check_repeat (gives: from, total, of, delay_before, others)
  if from then
    if epoch and #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
    local reply = {1, nonce, from, tonumber(total), of, 0, 1, tonumber(delay_before), replicas}
    for at, what, id, state, header in string.gmatch(others, '(%d+) (%-?%d) (%S*) (%a+) ([^\n]*)\n') do -- of claim
      local i = #reply
      reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = tonumber(at), tonumber(what), id, state
      reply[i + 5] = header
    end
    return reply
  end
end
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
