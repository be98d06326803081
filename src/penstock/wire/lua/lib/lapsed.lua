-- Jobs whose ttl has ended, at most 100 a call: a list, and the same as a set; and spent, at most 100 of those that were
-- delivered at most once.
local lapsed, lapse, spent = {}, {}, {}
if uses ~= '' and string.find(uses, 't', 1, true) then
  lapsed = redis.call('ZRANGE', expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
  for i = 1, #lapsed do
    lapse[lapsed[i]] = true
  end
end
if uses ~= '' and string.find(uses, 'o', 1, true) then
  spent = redis.call('ZRANGE', once, '-inf', now * 4096 + 4095, 'BYSCORE', 'LIMIT', 0, 100)
end
if #lapsed + #spent > 0 then -- nothing is written before every key is known to be of its type
  redis.call('ZCARD', active)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', once)
  redis.call('ZCARD', expiry)
  redis.call('HLEN', tally)
  redis.call('XLEN', ready)
  redis.call('HLEN', held)
end
if bequeath then
  bequeath(lapsed, false)
  bequeath(spent, false)
end
