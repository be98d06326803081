-- Refuse (-20) a queue whose ready jobs need choose_jobs: one that is not there, is paused, has one of the structures below, or a clock
-- of its own; a producer that waits for room; a role or an owner that the full script judges.
--- NEEDS  nonce epoch paused off since full now_ms uses role owner n
--- SETS   n
--- GIVES  now
local now = now_ms + 0
n = math.abs(n)
if not epoch or paused or off > 0 or since < 0 or role ~= '' or full > now or uses_any('rate large_bodies closed once tickets until_start ttls roles')
  or #owner > 200 or string.find(owner, '\n', 1, true) then
  return {-20, nonce}
end
