-- The queue's clock: TIME, kept from running back by an offset that shrinks again (PROTOCOL.md, Clock).
-- Needs seen and off (from meta) and changes (pairs for one HSET of meta at the end).
local time = redis.call('TIME')
local raw = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local now = raw + off
if now < seen then
  off = seen - raw
  now = seen
  changes[#changes + 1] = 'off'
  changes[#changes + 1] = off
end
if now - seen >= 1000 then
  if off > 0 then
    off = math.max(0, off - math.floor((now - seen) / 10))
    changes[#changes + 1] = 'off'
    changes[#changes + 1] = off
  end
  changes[#changes + 1] = 'seen'
  changes[#changes + 1] = now
end
