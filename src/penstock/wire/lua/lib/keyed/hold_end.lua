-- hold_end(hash) returns the time until which no job of a key is delivered; false = it is not held. One more than
-- 25 hours ahead (a day, and an hour by which the clock may go back) was written by a wrong clock, and counts as none (protocol/keys.md,
-- Holds). has_holds: some key may be held.
--- KEYS   holds
--- NEEDS  now uses
--- GIVES  has_holds hold_end
local has_holds, hold_ends = uses_any('key_holds') and redis.call('ZCARD', holds) > 0, {}
local function hold_end(hash)
  local ends = has_holds and hold_ends[hash]
  if has_holds and ends == nil then
    ends = tonumber(redis.call('ZSCORE', holds, hash) or 0)
    ends = ends > now and ends <= now + 90000000 and ends
    hold_ends[hash] = ends
  end
  return ends
end
