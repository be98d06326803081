-- read_delays(delay, from) returns the ms of each delay of an enqueue, and the longest; or nil, nil and the first malformed
-- one. An absolute time counts from `from`, and gives less than 0 if it has passed.
--- NEEDS  is_duration
--- GIVES  read_delays
local function read_delays(delay, from)
  local delays, longest = {}, nil
  for text in string.gmatch(delay .. ',', '([^,]*),') do
    local at = string.match(text, '^@(%d+)$')
    local ms = at and at - from or is_duration(text, 0) and text + 0
    if not ms or ms > 3162240000000 then
      return nil, nil, string.sub(text, 1, 200)
    end
    delays[#delays + 1], longest = ms, math.max(longest or ms, ms)
  end
  return delays, longest
end
