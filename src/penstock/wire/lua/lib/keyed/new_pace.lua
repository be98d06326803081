-- new_pace(rate, burst, past) returns the rate of each key (protocol/keys.md, Rates), nil if there is none: a GCRA with whole microseconds. An entry of
-- paces is the theoretical arrival time (TAT) of the key's next job. One that is past says nothing; one that is too far ahead was written by
-- a wrong clock, or under another rate: it counts as the latest possible, and is written so.
-- allowed(hash): jobs of a key that may be delivered now; spend(hash): one of them is; free_at(hash): the ms from which the next one may be;
-- latest: the ms that no key has to wait beyond; write(limit): write what has changed, and drop so many entries up to the ms `past`.
--- KEYS   held paces
--- NEEDS  now
--- GIVES  new_pace
local function new_pace(rate, burst, past)
  local count, period = string.match(rate or '', '^([1-9]%d*)/([1-9]%d*)$')
  if not count then
    return nil
  end
  local call, start, tats, is_changed, hashes = redis.call, now * 1000, {}, {}, {}
  local step = math.ceil(period * 1000 / count)
  local span = step * math.min(tonumber(burst) or 1, math.max(1, math.floor(3162240000000000 / step))) -- of a full burst
  redis.call('ZCARD', paces)
  local function note(hash, tat)
    if not is_changed[hash] then
      hashes[#hashes + 1], is_changed[hash] = hash, true
    end
    tats[hash] = tat
  end
  local function tat_of(hash)
    if not tats[hash] then
      local tat = tonumber(call('ZSCORE', paces, hash) or 0)
      tats[hash] = math.max(tat, start)
      if tat > start + span then
        note(hash, start + span)
      end
    end
    return tats[hash]
  end
  return {
    latest = now + math.ceil(step / 1000),
    longest = start + span,
    allowed = function(hash) return math.floor((start + span - tat_of(hash)) / step) end,
    spend = function(hash) note(hash, tat_of(hash) + step) end,
    free_at = function(hash) return math.ceil((tat_of(hash) + step - span) / 1000) end,
    write = function(limit)
      for i = 1, #hashes do
        hashes[i] = {string.format('%.0f', tats[hashes[i]]), hashes[i]}
      end
      local dropped = limit > 0 and call('ZRANGE', paces, '-inf', string.format('%.0f', past * 1000), 'BYSCORE', 'LIMIT', '0', limit) or {}
      if #dropped + #hashes > 0 then
        call('HDEL', held, '-')
      end
      if #dropped > 0 then
        call('ZREM', paces, unpack(dropped))
      end
      for i = 1, #hashes do
        call('ZADD', paces, hashes[i][1], hashes[i][2])
      end
      hashes, is_changed = {}, {}
      return #dropped
    end,
  }
end
