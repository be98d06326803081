-- Jobs whose ttl has ended, at most `reach` a call: a list, and the place of each in it; and spent, at most `reach` of those that were
-- delivered at most once. `reach` grows with the call: 100 and two for each job that it adds or ends, so that a client that
-- repeats a call leaves no more behind than it removes. A call that delivers reaches 2000, to get at the jobs behind them.
--- NEEDS  ready held active scheduled once tally expiry uses now reach score_of release_dedup
--- GIVES  lapsed lapse spent unlisted front elsewhere stood
local lapsed, lapse, spent, unlisted = {}, {}, {}, false -- unlisted: there may be more of the former
if uses ~= '' and string.find(uses, 't', 1, true) then
  lapsed = redis.call('ZRANGE', expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, reach)
  for i = 1, #lapsed do
    lapse[lapsed[i]] = i
  end
  unlisted = #lapsed == reach
end
if uses ~= '' and string.find(uses, 'o', 1, true) then
  spent = redis.call('ZRANGE', once, '-inf', string.format('%.0f', score_of(now, 4095)), 'BYSCORE', 'LIMIT', 0, reach)
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
release_dedup(lapsed, false)
release_dedup(spent, false)
--@include lib/front
