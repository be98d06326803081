-- Whether jobs may be added at all, and how many. A call that is repeated gets its first answer, also when the queue has been
-- removed since, and writes: WAIT would lie otherwise. What has lapsed is looked up. Gives later: ms until they may be delivered.
--- NEEDS  ready held active scheduled once tally expiry meta wake space dedup windows nonce producer epoch replicas role
---        uses full create paused max_length bound delay off reach seen v
--- SETS   epoch off
--- GIVES  now later changes created limit asleep hungry waiting drop_bodies lapsed change elsewhere end_of front
---        is_lease spent stood unlisted write_dedup write_dedup_and_wake
--@include lib/version
--@include lib/now
--@include lib/lease
local before = redis.call('GET', producer)
if before then
  local number, wanted = tonumber(string.match(before, '^%d+')), tonumber(nonce)
  if number > wanted then
    return {-7, nonce, string.match(before, '^%d+')}
  elseif number == wanted then
    local from, total, of, later, items = string.match(before, '^%d+ (%S*) (%d+) (%x+) (%d)\n?(.*)$')
    if from then
      redis.call('PEXPIRE', producer, 600000)
      if epoch and #changes > 0 then
        redis.call('HSET', meta, unpack(changes))
      end
      local reply = {1, nonce, from, tonumber(total), of, 0, 1, tonumber(later), replicas}
      for at, what, id, state, header in string.gmatch(items, '(%d+) (%-?%d) (%S*) (%a+) ([^\n]*)\n') do -- of claim
        local i = #reply
        reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = tonumber(at), tonumber(what), id, state
        reply[i + 5] = header
      end
      return reply
    end
  end
end
local created, kind = 0, 'producer'
--@include lib/role
local closed = uses ~= '' and string.find(uses, 'c', 1, true)
if (closed or lost or taken_by) and full > now and redis.call('LLEN', space) == 0 then
  redis.call('HDEL', held, '-') -- refused: the next one who waits for room is told, too
  redis.call('RPUSH', space, '1')
end
if lost then
  return {-16, nonce, kind}
end
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch = create
  created = 1
end
if closed then
  return {-14, nonce}
elseif taken_by then
  return {-15, nonce, kind, taken_by, left}
end
if paused == 'in' or paused == 'all' then
  return {-4, nonce, paused}
end
local limit = tonumber(max_length)
if tonumber(bound) and (not limit or tonumber(bound) < limit) then
  limit = tonumber(bound)
end
local asleep, hungry = redis.call('LLEN', wake) == 0, false
local waiting = 0
--@include lib/drop_bodies
--@include lib/release_dedup
--@include lib/lapsed
local later
if string.sub(delay, 1, 1) == '@' then
  later = string.sub(delay, 2) - raw
else
  later = tonumber(delay)
end
