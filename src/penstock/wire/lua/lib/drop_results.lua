-- drop_results(most, added, bytes_added) removes kept results whose time has ended, and those beyond the bounds of number
-- and bytes, the soonest end first: at most `most`, and perhaps 99 more. added, bytes_added: number and size of those that
-- this call has kept. It returns how many it has removed.
--- NEEDS  held expiry meta now
--- GIVES  results_from drop_results
local results_from = 2251799813685248 -- 2^51: scores of kept results stand above every time
local function drop_results(most, added, bytes_added)
  local settings = redis.call('HMGET', meta, 'results_max', 'results_bytes', 'kept', 'kept_bytes')
  local max_count, max_bytes = tonumber(settings[1]) or 10000, tonumber(settings[2]) or 67108864
  local count, bytes = (settings[3] or 0) + added, (settings[4] or 0) + bytes_added
  local gone, n, groups, due, find, sub = {}, 0, {}, true, string.find, string.sub
  while due and n < most do
    local page = redis.call('ZRANGE', expiry, results_from, '(4503599627370496', 'BYSCORE', 'LIMIT', #groups, #groups == 0 and 2 or 10, 'WITHSCORES')
    due = #page > 0
    for i = 1, #page, 2 do
      due = due and n < most and (tonumber(page[i + 1]) <= results_from + now or count - n > max_count or bytes > max_bytes)
      if due then
        local group = page[i]
        groups[#groups + 1], bytes = group, bytes - (string.match(group, '^>(%d+)') or 0)
        local from = find(group, ' ', 1, true)
        while from do
          local stop = find(group, ' ', from + 1, true)
          n = n + 1
          gone[n], from = sub(group, from + 1, stop and stop - 1), stop
        end
      end
    end
  end
  if n > 0 then
    redis.call('HDEL', held, unpack(gone))
    redis.call('ZREM', expiry, unpack(groups))
  end
  if n > 0 or added > 0 then
    redis.call('HSET', meta, 'kept', string.format('%.0f', math.max(count - n, 0)), 'kept_bytes', string.format('%.0f', math.max(bytes, 0)))
  end
  return n
end
