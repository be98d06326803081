-- Find the next event after a delivery of choose_ready (`wrote`), and add the wake token for other consumers. `reread`: the
-- head of active has ended in this call.
--- KEYS   ready held active scheduled meta wake
--- NEEDS  head first end_of now lease exhausted entries_left alarm idle took n change wrote changes wake_empty reread paused
---        since now_ms
--- SETS   alarm
--- GIVES  next_in
if since >= 1000 then
  change('seen', now_ms)
end
local spend = nil -- it has no rate
local function is_drained() -- the queue is open
end
--@include lib/deliver/next_event
local delivery = {
  first_end = head[2] and end_of(head[2]), first_due = tonumber(first[2]), is_changed = reread, soonest = took > 0 and now + lease, has_read_all = exhausted and entries_left == 0,
}
local next_in = next_event(delivery, took, n, idle, wrote, nil)
