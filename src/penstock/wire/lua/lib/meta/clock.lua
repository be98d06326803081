-- Find the time of the queue: TIME and an offset of at most 30 days, so that it never goes back. The offset shrinks again
-- (protocol/core.md, Clock). nothing() replaces functions that a call does not need: creating them takes time.
--- NEEDS  seen off change time
--- GIVES  nothing raw now
local function nothing()
end
local raw = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local now, behind = raw, seen - raw
if behind > 2592000000 then -- this reading of TIME or an earlier one was wrong: follow it
  change('off', 0)
elseif behind > off then
  now = seen
  change('off', behind)
else -- reduce the offset by a tenth of the time since seen
  local shrunk = math.min(off, math.floor((off - behind) / 10))
  now = raw + off - shrunk
  if shrunk > 0 and now - seen >= 1000 then
    change('off', off - shrunk)
  end
end
if behind > 2592000000 or now - seen >= 1000 then
  change('seen', now)
end
