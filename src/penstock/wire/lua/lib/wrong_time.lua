-- wrong_time(record, now) returns the first time of a record (lease, ttl, window) that is out of bounds: its name, its text, and
-- the record with the nearest time within them, which is the longest for what is no number. nil = all are within.
--- GIVES  wrong_time
local wrong_time
do
  local years = 3162240000000
  local times = {
    {name = 'lease', pattern = '^1;l=()([^;\n]*)()', least = 0, most = 2073600000},
    {name = 'ttl', pattern = '^1[;l=%d]*;t=()([^;\n]*)()', least = 1, most = years},
    {name = 'window', pattern = '^1[^\n]-;d=[^;\n]+;w=()([^;\n]*)()', least = 1, most = years},
  }
  wrong_time = function(record, now)
    for i, time in ipairs(times) do
      local begins, text, ends = string.match(record, time.pattern)
      local ms = text and (string.find(text, '^%d+$') and text + 0 or math.huge)
      local most = i == 1 and math.min(time.most, 3934712855551 - now) or time.most -- the end of a lease fits into a score
      if ms and (ms < time.least or ms > most) then
        local nearest = string.format('%.0f', math.max(time.least, math.min(ms, most)))
        return time.name, string.sub(text, 1, 200), string.sub(record, 1, begins - 1) .. nearest .. string.sub(record, ends)
      end
    end
  end
end
