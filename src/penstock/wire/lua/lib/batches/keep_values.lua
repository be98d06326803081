-- keep_values(ids, state, given, most) notes how members of batches that keep values have ended, at their places (protocol/batches.md,
-- Values), and jobs that a step has called, among the notes of their callers. given: the results that came with the call, for keep_results; most: bytes of a value. It may write first: a full server refuses
-- that, and the states are noted without the values then. It returns true if the server is full, false if it has room, nil if it wrote nothing.
--- KEYS   held tally members
--- GIVES  keep_values
local function keep_values(ids, state, given, most)
  local owners, value_of, heads, named = redis.call('HMGET', members, unpack(ids)), {}, {}, {}
  for i = 1, given and #given.ids or 0 do
    value_of[given.ids[i]] = string.match(given.values[i], '^%d* %d* (.*)$')
  end
  local fields, is_full = {}, nil
  local function probe() -- the first write tells if the server is full
    if is_full == nil then
      local blocks = {'-', ''}
      is_full = not tonumber(redis.pcall('HSET', held, unpack(blocks))) -- OOM
      redis.call('HDEL', held, '-')
    end
  end
  --@include lib/batches/end_call
  for i = 1, #ids do
    local id = ids[i]
    local callback, place = string.match(owners[i] or '', '^!?([^:]+):(%d+)$')
    if callback and not named[id] and string.byte(callback) == 110 then -- n: a step has called it
      named[id] = true
      probe()
      local value = value_of[id] or ''
      end_call(owners[i], state, #value > most and '!large' or value)
    elseif callback and not named[id] and place + 0 <= 10000 then
      named[id] = true
      local head = heads[callback] or {string.match(redis.call('HGET', tally, 'nb' .. callback) or '', '^(%d+) (%d+)$')}
      heads[callback] = head
      if head[1] then -- the callback has not ended
        probe()
        local value = value_of[id] or ''
        value = #value > most and '!large' or head[2] + #value > 16777216 and '!room' or value
        value = is_full and value ~= '' and '!full' or value
        fields[#fields + 1] = 'nb' .. callback .. ':' .. place
        fields[#fields + 1] = id .. ' ' .. state .. ' ' .. value
        head[2] = head[2] + #state + 2 + #value
      end
    end
  end
  if #fields > 0 then
    redis.call('HSET', tally, unpack(fields))
  end
  for callback, head in pairs(heads) do
    if head[1] then
      redis.call('HSET', tally, 'nb' .. callback, head[1] .. string.format(' %.0f', head[2]))
    end
  end
  return is_full
end
