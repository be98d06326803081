-- expired_at_head(ids, places) looks at the expired jobs at the head of ready. It returns a number before which ready has only expired
-- jobs ('-' = none), how many they are, and the other expired jobs. It reads few entries, because no other job is between
-- consecutive numbers, such as those of one call. places: number -> place in ids.
--- KEYS   ready
--- GIVES  expired_at_head
local function expired_at_head(ids, places)
  local trim_to, head_count, others = '-', 0, {}
  if #ids > 0 then
    local sub, ahead, rising, bytes, over = string.sub, {}, {}, 0, false
    rising[#ids] = #ids
    for i = #ids - 1, 1, -1 do -- up to which place the list is in order
      rising[i] = ids[i] < ids[i + 1] and rising[i + 1] or i
    end
    repeat
      local entries, at = redis.call('XRANGE', ready, trim_to, '+', 'COUNT', 16), nil
      over = #entries < 16
      for i = 1, #entries do
        local place = places[entries[i][1]]
        if not place then
          over = true
          break
        end
        at, ahead[place], head_count, bytes = place, true, head_count + 1, bytes + #entries[i][2][2]
      end
      if at then
        local ms, seq = sub(ids[at], 1, -11), sub(ids[at], -10)
        local last, high = at, over and at or rising[at]
        while last < high do -- find the last consecutive number
          local middle = math.ceil((last + high) / 2)
          if sub(ids[middle], 1, -11) == ms and sub(ids[middle], -10) - seq == middle - at then
            last = middle
          else
            high = middle - 1
          end
        end
        for i = at + 1, last do
          ahead[i] = true
        end
        head_count = head_count + last - at
        trim_to = ms .. string.format('%.0f', seq + last - at + 1)
      end
    until over or bytes >= 1048576
    for i = 1, head_count < #ids and #ids or 0 do
      if not ahead[i] then
        others[#others + 1] = ids[i]
      end
    end
  end
  return trim_to, head_count, others
end
