-- drop_results(most, added, bytes_added, bounds) removes blocks of kept results whose time has ended, and those beyond the
-- bounds of number and bytes, the soonest end first: at most `most` results, and perhaps 99 more. added, bytes_added: number
-- and size of those that this call has kept. bounds: those of result_bounds(), if the call has read them. It returns how many
-- results it has removed.
--- KEYS   held expiry meta
--- NEEDS  now
--- GIVES  results_from result_bounds drop_results
local results_from = 2251799813685248 -- 2^51: scores of kept results stand above every time
local function result_bounds()
  return redis.call('HMGET', meta, 'results_max', 'results_bytes', 'kept', 'kept_bytes', 'result_size')
end
local function drop_results(most, added, bytes_added, bounds)
  bounds = bounds or result_bounds()
  local max_count, max_bytes = tonumber(bounds[1]) or 10000, tonumber(bounds[2]) or 67108864
  local count, bytes = (bounds[3] or 0) + added, (bounds[4] or 0) + bytes_added
  local fields, members, n, due = {}, {}, 0, true
  while due and n < most do
    local page = redis.call('ZRANGE', expiry, results_from, '(4503599627370496', 'BYSCORE', 'LIMIT', #members, #members == 0 and 2 or 20, 'WITHSCORES')
    due = #page > 0
    for i = 1, #page, 2 do
      due = due and n < most and (tonumber(page[i + 1]) <= results_from + now or count - n > max_count or bytes > max_bytes)
      if due then
        local size, results, name = string.match(page[i], '^>(%d+) (%d+) (.*)$')
        if not name then -- a job, not a result: older scripts allowed a ttl that puts it among the results
          size, results, name = 0, 1, page[i]
          count = count + 1
        end
        members[#members + 1], fields[#fields + 1] = page[i], '>' .. name
        n, bytes = n + results, bytes - size
      end
    end
  end
  if n > 0 then
    redis.call('HDEL', held, unpack(fields))
    redis.call('ZREM', expiry, unpack(members))
  end
  if n > 0 or added > 0 then
    redis.call('HSET', meta, 'kept', string.format('%.0f', math.max(count - n, 0)), 'kept_bytes', string.format('%.0f', math.max(bytes, 0)))
  end
  return n
end
