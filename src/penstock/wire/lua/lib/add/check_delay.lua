-- Read the delay of an enqueue: delay_ms (the longest), and delays (one for each record; nil = all have delay_ms).
--- NEEDS  delay nonce raw
--- GIVES  is_duration delays delay_ms
--@include lib/checks/is_duration
local delays, delay_ms = nil, 0
if is_duration(delay, 0) then
  delay_ms = delay + 0
else
  local malformed
  --@include lib/add/read_delays
  delays, delay_ms, malformed = read_delays(delay, raw)
  if malformed then
    return {-19, nonce, 'delay', malformed}
  end
end
