-- choose_ended(delivery, expired, search) adds up to search.n jobs whose leases have ended, the earliest end first. Each counts as a crash.
-- A job may die of it, end as it was cancelled, or be parked. It stops after most_unusable jobs that end or have no record. It writes
-- bytes, unusable and undelivered of `search` (see choose_jobs), and notes `ended` in the delivery, the changes that do not deliver: dying
-- (number and counters of each), cancelled, marks, to_park (number and counters of those that are parked), and crashes, a count.
--- KEYS   active tally meta
--- NEEDS  now uses score_of keyed screen read_job
--- GIVES  choose_ended
--@include lib/meta/limit_of
--@include lib/deliver/count_crash
--@include lib/return/describe_failure
local function choose_ended(delivery, expired, search)
  local n, page, most_unusable = search.n, search.page, search.most_unusable
  local call, high, at, over = redis.call, string.format('%.0f', score_of(now, 4095)), 0, nil
  local ids, records, counts = delivery.ids, delivery.records, delivery.counts
  local dropped, dying, cancelled, marks, to_park, crashes = delivery.dropped, {}, {}, {}, {}, 0
  local policy = call('HMGET', meta, 'max_attempts', 'max_crashes')
  local max_attempts, max_crashes = limit_of(policy[1], 20), limit_of(policy[2], 3)
  local has_marks, most_to_park = uses_any('marks'), math.max(n + 100, 1000)
  local bytes, unusable, undelivered = 0, 0, 0
  repeat
    over = call('ZRANGE', active, '-inf', high, 'BYSCORE', 'LIMIT', at, page)
    at = at + page
    unusable = unusable + screen(over, expired)
    for i = 1, #over do
      local id = over[i]
      if #ids == n or bytes >= 1048576 or #to_park == 2 * most_to_park then
        break
      elseif not expired.left_out[id] then
        local record, size, count, value = read_job(id)
        if not record then
          dropped[#dropped + 1] = id
          unusable = unusable + 1
        elseif has_marks and call('HEXISTS', tally, 'c' .. id) == 1 then
          cancelled[#cancelled + 1] = id
          unusable, undelivered = unusable + 1, undelivered + 1
        else
          local after, dies, crashed = count_crash(count, record, value, max_attempts, max_crashes)
          crashes, bytes = crashes + crashed, bytes + size
          if crashed > 0 then
            marks[#marks + 1] = 'e' .. id
            marks[#marks + 1] = describe_failure(id, value, 'lease ended', '')
          end
          if dies then
            dying[#dying + 1] = id
            dying[#dying + 1] = after
            unusable, undelivered = unusable + 1, undelivered + 1
          elseif keyed and not keyed.take(id, record, 'ended') then -- it was delivered before the queue got its limit
            to_park[#to_park + 1] = id
            to_park[#to_park + 1] = string.gsub(after, '^%d+', '%0+')
          else
            local place = #ids + 1
            ids[place], records[place], counts[place] = id, record, after
          end
        end
      end
    end
  until #over < page or #ids == n or bytes >= 1048576 or unusable >= most_unusable or #to_park == 2 * most_to_park
  delivery.ended = {dying = dying, cancelled = cancelled, marks = marks, to_park = to_park, crashes = crashes}
  search.bytes, search.unusable, search.undelivered = bytes, unusable, undelivered
end
