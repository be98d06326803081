-- The steps of claim and publish: add the `asked` records in `given`, which carry dedup ids. Gives the reply.
--- NEEDS  ready held active scheduled once tally expiry meta wake space dedup windows nonce asked epoch given alarm
---        bound create delay enqueued full last max_length mode off paused producer reach replicas role seen uses v wait
--- SETS   epoch alarm off uses
--- GIVES  reply
--@include lib/admission
--@include lib/expired_windows
--@include lib/decide_dedup
local n = usual and asked or #fresh
if asked == 0 then
  --@include lib/renewed
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
elseif n == 0 then -- nothing is added, so there is room
  limit = nil
end
--@include lib/crowded
--@include lib/numbers
local list, whence = usual and given or fresh, origins
--@include lib/lives
--@include lib/add_deduplicated
