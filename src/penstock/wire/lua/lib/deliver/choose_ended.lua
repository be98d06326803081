-- Choose up to n jobs whose leases have ended, the earliest end first. Each counts as a crash. A job may die of it, end as it
-- was cancelled, or be parked.
--- NEEDS  active tally meta now expired uses n score_of keyed call a allowed bytes cancelled crashes dropped dying
---        limit_of marks most_parks page parks passed put_back screen skipped stays taken taken_counts taken_records
---        took unpacked
--- SETS   bytes crashes parks passed skipped took
if n > 0 and a and a <= now then
  local high, at, over = string.format('%.0f', score_of(now, 4095)), 0, nil
  local policy = call('HMGET', meta, 'max_attempts', 'max_crashes')
  local max_attempts, max_crashes = limit_of(policy[1], 20), limit_of(policy[2], 3)
  --@include lib/deliver/count_crash
  --@include lib/return/describe_failure
  local has_marks = uses_any('marks')
  repeat
    over = call('ZRANGE', active, '-inf', high, 'BYSCORE', 'LIMIT', at, page)
    at = at + page
    screen(over)
    for i = 1, #over do
      local id = over[i]
      if took == n or bytes >= 1048576 or parks == most_parks then
        break
      elseif not expired.set[id] then
        local record, size, count, value = unpacked(id)
        if not record then
          dropped[#dropped + 1] = id
          passed = passed + 1
        elseif has_marks and call('HEXISTS', tally, 'c' .. id) == 1 then
          cancelled[#cancelled + 1] = id
          passed, skipped = passed + 1, skipped + 1
        else
          local after, dies, crashed = count_crash(count, record, value)
          crashes, bytes = crashes + crashed, bytes + size
          if crashed > 0 then
            marks[#marks + 1] = 'e' .. id
            marks[#marks + 1] = describe_failure(id, value, 'lease ended', '')
          end
          if dies then
            dying[#dying + 1] = id
            dying[#dying + 1] = after
            passed, skipped = passed + 1, skipped + 1
          elseif keyed and stays(id, record) then -- it was delivered before the queue got its limit
            put_back[#put_back + 1] = id
            put_back[#put_back + 1] = string.gsub(after, '^%d+', '%0+')
          else
            took = took + 1
            taken[took], taken_records[took], taken_counts[took] = id, record, after
          end
        end
      end
    end
  until #over < page or took == n or bytes >= 1048576 or passed >= allowed or parks == most_parks
  parks = 0
end
