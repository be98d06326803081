-- The steps of claim and publish: add the `asked` records in `given`, which carry dedup ids. Gives the reply.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake space
---        parked tickets
--- NEEDS  before nonce asked epoch given alarm bound create delay enqueued full last max_length mode off paused producer
---        replicas records role seen sweep_limit uses v wait
--- SETS   epoch alarm off uses
--- GIVES  reply
--@include lib/add/check_producer (gives: limit)
--@include lib/add/check_ttls
--@include lib/batches/check_open_batch
--@include lib/dedup/expired_windows
--@include lib/dedup/decide_dedup (gives: all_free, added, room_needed)
local n = all_free and asked or #added
if asked == 0 then
  --@include lib/checks/renew_role
  return {1, nonce, '', 0, epoch, 0, 0, 0, 0}
elseif room_needed == 0 then -- the room remains
  limit = nil
end
--@include lib/add/check_capacity
--@include lib/add/assign_numbers
local list = all_free and given or added
--@include lib/add/check_records
--@include lib/dedup/add_deduplicated
