-- The lapsed at the head of ready. Gives front: ready has no other job before this number ('-' = none is at its head); stood: how
-- many lapsed it has there; elsewhere: the other lapsed. Few entries are read: no job can stand between numbers that follow each
-- other, as those of one call do.
--- NEEDS  ready lapsed lapse
--- GIVES  front stood elsewhere
local front, stood, elsewhere = '-', 0, {}
if #lapsed > 0 then
  local sub, ahead, rising, bytes, over = string.sub, {}, {}, 0, false
  rising[#lapsed] = #lapsed
  for i = #lapsed - 1, 1, -1 do -- as far as lapsed is in order
    rising[i] = lapsed[i] < lapsed[i + 1] and rising[i + 1] or i
  end
  repeat
    local entries, at = redis.call('XRANGE', ready, front, '+', 'COUNT', 16), nil
    over = #entries < 16
    for i = 1, #entries do
      local place = lapse[entries[i][1]]
      if not place then
        over = true
        break
      end
      at, ahead[place], stood, bytes = place, true, stood + 1, bytes + #entries[i][2][2]
    end
    if at then
      local ms, seq = sub(lapsed[at], 1, -11), sub(lapsed[at], -10)
      local last, high = at, over and at or rising[at]
      while last < high do -- the last number that follows without a gap
        local middle = math.ceil((last + high) / 2)
        if sub(lapsed[middle], 1, -11) == ms and sub(lapsed[middle], -10) - seq == middle - at then
          last = middle
        else
          high = middle - 1
        end
      end
      for i = at + 1, last do
        ahead[i] = true
      end
      stood = stood + last - at
      front = ms .. string.format('%.0f', seq + last - at + 1)
    end
  until over or bytes >= 1048576
  for i = 1, stood < #lapsed and #lapsed or 0 do
    if not ahead[i] then
      elsewhere[#elsewhere + 1] = lapsed[i]
    end
  end
end
