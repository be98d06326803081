-- Find the next event after a delivery of choose_ready (`wrote`), and add the wake token for other consumers. `reread`: the
-- head of active has ended in this call.
--- NEEDS  ready held active scheduled meta wake head first end_of now lease exhausted entries_left alarm idle took n
---        change wrote changes wake_empty reread paused since now_ms
--- SETS   head first alarm
--- GIVES  next_in
if since >= 1000 then
  change('seen', now_ms)
end
local delivers, more, soonest, successor_due, spend = true, false, took > 0 and now + lease, nil, nil -- it has no rate
local function is_drained() -- the queue is open
end
--@include lib/deliver/next_event
