-- Finish the deliveries of check_first_deliveries: they have no counters, but may have marks.
--- KEYS   held active tally
--- NEEDS  ids uses common_score
--- GIVES  removed
local removed, done, has_marks = 0, ids, uses_any('marks')
if has_marks then
  redis.call('HLEN', tally) -- check its type
end
--@include lib/finish/remove_deliveries
if has_marks then
  local notes_left, note_bytes_left = 2000, 67108864
  --@include lib/finish/forget_marks
  forget_marks(done)
end
