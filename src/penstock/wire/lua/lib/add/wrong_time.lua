-- wrong_time(record, now) returns the first time of a record (lease, ttl, window) that is out of bounds: its name, its text, and
-- the record with the nearest time within them, which is the longest for what is no number. nil = all are within.
--- GIVES  wrong_time
local wrong_time
do
  local years, match = 3162240000000, string.match
  local function mend(record, name, least, most, begins, text, ends)
    local ms = text and (string.find(text, '^%d+$') and text + 0 or math.huge)
    if ms and (ms < least or ms > most) then
      local nearest = string.format('%.0f', math.max(least, math.min(ms, most)))
      return name, string.sub(text, 1, 200), string.sub(record, 1, begins - 1) .. nearest .. string.sub(record, ends)
    end
  end
  wrong_time = function(record, now)
    local third, name, text, mended = string.byte(record, 3), nil, nil, nil
    if third == 108 then -- the end of a lease fits into a score
      name, text, mended = mend(record, 'lease', 0, math.min(2073600000, 3934712855551 - now), match(record, '^1;l=()([^;\n]*)()'))
    end
    if not name and (third == 108 or third == 116) then
      name, text, mended = mend(record, 'ttl', 1, years, match(record, '^1[;l=%d]*;t=()([^;\n]*)()'))
    end
    local at = not name and string.find(record, ';d=', 1, true)
    if at then
      name, text, mended = mend(record, 'window', 1, years, match(record, '^;d=[^;\n]+;w=()([^;\n]*)()', at))
    end
    return name, text, mended
  end
end
