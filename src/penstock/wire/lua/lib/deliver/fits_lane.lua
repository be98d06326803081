-- Find out if the fast lane may deliver jobs (fits). Not if
--   a structure that `uses` names decides about ready jobs, or about what is written for them; priorities do not: such jobs are due ones;
--   the queue is not there, or paused, or its clock is not that of the server (off, since);
--   a producer waits for room (full), or the caller has a role, or an owner that has to be judged.
--- NEEDS  epoch paused off since full now_ms uses role owner
--- GIVES  fits
local fits = not uses_any('rate max_active holds large_bodies closed once tickets until_start ttls roles') and epoch and not paused and off <= 0 and since >= 0
  and role == '' and full <= now_ms + 0 and #owner <= 200 and not string.find(owner, '\n', 1, true)
