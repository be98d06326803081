-- end_delivery(id) makes the receipt of the last delivery stale, and adds the counters to new_counters.
--- KEYS   tally
--- GIVES  new_counters end_delivery
--@include lib/return/void_receipts
local new_counters = {}
local function end_delivery(id)
  local deliveries, others = string.match(redis.call('HGET', tally, id) or '1 0 0 0', '^(%d+%+?)(.*)$')
  new_counters[#new_counters + 1] = id
  new_counters[#new_counters + 1] = void_receipts(deliveries) .. others
end
