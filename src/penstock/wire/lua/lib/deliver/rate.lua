-- Find how many jobs the rate of the queue allows now: allowance, nil = it has no rate; 0 = it is held. spend(took) notes deliveries, and
-- returns the time from which the next job is allowed; nil = now (protocol/rate.md). `used` is the time that the deliveries
-- so far take up, in parts of a ms: as many as the rate's count.
--- KEYS   meta
--- NEEDS  uses now change
--- GIVES  allowance spend
local allowance, spend = nil, nil
if uses_any('rate') then
  local stored = redis.call('HMGET', meta, 'rate', 'burst', 'tat')
  local count, period, parts = string.match(stored[1] or '', '^(%d+)/(%d+)/?(%d*)$')
  if count then
    count, period, parts = tonumber(count), period * (tonumber(parts) or 1), tonumber(parts) or 1
    local burst = math.max(1, math.floor((tonumber(stored[2]) or 1) / parts))
    local at, rest, of = string.match(stored[3] or '', '^(%d+) (%d+) (%d+)$')
    local used, wrong = 0, false
    if at then
      used = (at - now) * count + (tonumber(of) == count and rest or rest ~= '0' and count or 0) -- another rate: a ms at most
      wrong = used > burst * period -- a wrong clock, or a larger burst before: a full burst from now on
      used = math.min(math.max(0, used), burst * period)
    end
    allowance = burst - math.ceil(used / period)
    spend = function(took)
      used = used + took * period
      if took > 0 or wrong then
        change('tat', string.format('%.0f %.0f %.0f', now + math.floor(used / count), used % count, count))
      end
      local over = used - (burst - 1) * period
      return over > 0 and now + math.ceil(over / count) or nil
    end
  end
end
do
  --@include lib/deliver/hold (gives: held_until)
  if held_until then
    local spend_rate = spend
    allowance = 0
    spend = function(took)
      return math.max(held_until, spend_rate and spend_rate(took) or 0)
    end
  end
end
