-- end_delivery(id) voids the receipt of a job's last delivery: the number of the next one is set aside, and no receipt fits until
-- then. Adds the counters to recount.
--- NEEDS  tally
--- GIVES  recount end_delivery
--@include lib/aside
local recount = {}
local function end_delivery(id)
  local deliveries, others = string.match(redis.call('HGET', tally, id) or '1 0 0 0', '^(%d+%+?)(.*)$')
  recount[#recount + 1] = id
  recount[#recount + 1] = aside(deliveries) .. others
end
