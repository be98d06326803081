-- raise_urgent() puts due jobs with a priority before the usual ones, up to 100 a call: they leave urgent. It writes, so it first checks
-- the types of all keys.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished dedup windows wake space
--- NEEDS  now
--- GIVES  raise_urgent
local function raise_urgent()
  local call = redis.call
  local due = call('ZRANGE', urgent, '-inf', string.format('%.0f', now * 16 + 15), 'BYSCORE', 'LIMIT', 0, 100, 'WITHSCORES')
  if #due > 0 then
    local places, ids = {}, {}
    for i = 1, #due, 2 do
      local priority = due[i + 1] % 16
      ids[#ids + 1] = due[i]
      places[i], places[i + 1] = string.format('%.0f', (due[i + 1] - priority) / 16 - priority * 4398046511104), due[i]
    end
    for _, index in ipairs({active, scheduled, once, dead, expiry, windows}) do
      call('ZCARD', index)
    end
    call('XLEN', ready)
    call('XLEN', finished)
    call('HLEN', tally)
    call('HLEN', dedup)
    call('LLEN', wake)
    call('LLEN', space)
    call('HDEL', held, '-')
    call('ZADD', scheduled, 'XX', unpack(places))
    call('ZREM', urgent, unpack(ids))
  end
end
