-- wake_returned(due) ends a call of write_return: it releases dedup ids, writes `changes`, and adds the wake token if a job is due now or
-- soon.
--- KEYS   meta wake
--- NEEDS  now alarm change changes paused wake_after_ends wake_empty write_ends
--- SETS   alarm
--- GIVES  wake_returned
--@include lib/deliver/announce
local function wake_returned(due)
  local token, successor_due = false, write_ends()
  if successor_due and (not due or successor_due < due) then
    due = successor_due
  end
  if due and not paused then
    token = due <= now or announce(due, false)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  wake_after_ends()
end
