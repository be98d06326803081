-- expired_at_head() looks at the expired jobs at the head of ready. It returns trim_to (ready has only expired jobs
-- before this number; '-' = none), how many they are, and the other expired jobs. It reads few entries, because no
-- other job is between consecutive numbers, such as those of one call.
--- NEEDS  ready nothing expired expired_set
--- GIVES  trim_to head_expired other_expired expired_at_head
local trim_to, head_expired, other_expired, expired_at_head = '-', 0, {}, nothing
if #expired > 0 then
  expired_at_head = function()
    local trim_to, head_expired, other_expired = '-', 0, {}
    if #expired > 0 then
      local sub, ahead, rising, bytes, over = string.sub, {}, {}, 0, false
      rising[#expired] = #expired
      for i = #expired - 1, 1, -1 do -- up to which place the list is in order
        rising[i] = expired[i] < expired[i + 1] and rising[i + 1] or i
      end
      repeat
        local entries, at = redis.call('XRANGE', ready, trim_to, '+', 'COUNT', 16), nil
        over = #entries < 16
        for i = 1, #entries do
          local place = expired_set[entries[i][1]]
          if not place then
            over = true
            break
          end
          at, ahead[place], head_expired, bytes = place, true, head_expired + 1, bytes + #entries[i][2][2]
        end
        if at then
          local ms, seq = sub(expired[at], 1, -11), sub(expired[at], -10)
          local last, high = at, over and at or rising[at]
          while last < high do -- find the last consecutive number
            local middle = math.ceil((last + high) / 2)
            if sub(expired[middle], 1, -11) == ms and sub(expired[middle], -10) - seq == middle - at then
              last = middle
            else
              high = middle - 1
            end
          end
          for i = at + 1, last do
            ahead[i] = true
          end
          head_expired = head_expired + last - at
          trim_to = ms .. string.format('%.0f', seq + last - at + 1)
        end
      until over or bytes >= 1048576
      for i = 1, head_expired < #expired and #expired or 0 do
        if not ahead[i] then
          other_expired[#other_expired + 1] = expired[i]
        end
      end
    end
    return trim_to, head_expired, other_expired
  end
  trim_to, head_expired, other_expired = expired_at_head()
end
