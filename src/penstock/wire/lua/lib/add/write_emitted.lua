-- write_emitted(receipt, number, span, heads) adds the entries of a delivery to emitted, which has the last 10000 and about 1 MiB of text, and
-- returns `kept` of emit. heads = {head, text, ...}. An entry that an earlier run of the call has added is left out: indexes rise in a
-- delivery. The text of an entry is behind the number of the delivery, the attempt, the index, and the bytes of all texts up to this one.
--- KEYS   tally
--- NEEDS  emitted emitters now
--- GIVES  write_emitted
local function write_emitted(receipt, number, span, heads)
  span = math.max(tonumber(span) or 0, 60000)
  local newest = redis.call('XREVRANGE', emitted, '+', '-', 'COUNT', 1)[1]
  if redis.call('ZCOUNT', emitters, '(' .. string.format('%.0f', now), '+inf') >= 1000 and not newest then
    return -2
  end
  local last, last_index, total, ms, seq = '', 0, 0, 0, -1
  if newest then
    last, last_index, total = string.match(newest[2][2], '^(%d+) %d+ (%d+) (%d+) ')
    ms, seq = string.match(newest[1], '^(%d+)-(%d+)$')
  end
  local delivery = string.match(receipt, '^%d+')
  local nacks, crashes = string.match(redis.call('HGET', tally, number) or '', '^%S+ (%d+) (%d+)')
  local front = delivery .. string.format(' %d ', 1 + (nacks or 0) + (crashes or 0))
  for i = 1, #heads, 2 do
    local kind, index = string.match(heads[i], '^(%a)(%d+)$')
    if last ~= delivery or index + 0 > last_index + 0 then
      local text = heads[i + 1]
      total = total + #text
      if ms + 0 < now then
        ms, seq = now, 0
      else
        seq = seq + 1
      end
      local id = string.format('%.0f-%.0f', ms, seq)
      local added = redis.pcall('XADD', emitted, 'MAXLEN', '~', '10000', id, kind, front .. index .. string.format(' %.0f ', total) .. text)
      if added.err then -- OOM, of the first write
        return -1
      end
    end
  end
  if total + 0 > 1048576 then
    local function is_behind(entry)
      return total - string.match(entry[2][2], '^%d+ %d+ %d+ (%d+) ') > 1048576
    end
    if is_behind(redis.call('XRANGE', emitted, '-', '+', 'COUNT', '1')[1]) then
      local oldest, first = redis.call('XRANGE', emitted, '-', '+', 'COUNT', '1000'), 1
      while first < #oldest and is_behind(oldest[first]) do
        first = first + 1
      end
      redis.call('XTRIM', emitted, 'MINID', oldest[first][1])
    end
  end
  redis.call('ZREMRANGEBYSCORE', emitters, '-inf', string.format('%.0f', now))
  redis.call('ZADD', emitters, 'GT', string.format('%.0f', now + span), number)
  if redis.call('PTTL', emitted) < span then
    redis.call('PEXPIRE', emitted, string.format('%.0f', span))
  end
  if redis.call('PTTL', emitters) < span then
    redis.call('PEXPIRE', emitters, string.format('%.0f', span))
  end
  return 1
end
