-- Find the number of the first of n new jobs: in this ms (now_ms, 13 digits), or in that of the last number if it is
-- later. seq has ten digits. It begins at random in each ms, and each call leaves a random gap. So a number that a
-- failover has lost is not given to another job. Both times are compared as texts: that is quick, and they are as long.
--- NEEDS  nonce seed now_ms last n
--- GIVES  ms_digits seq
local draw = seed * (nonce % 1048576) % 8388593
local ms_digits, seq = now_ms, 1000000000 + draw
if last and last >= now_ms then -- in the same ms, as `last` is longer then, or in a later one
  local s, q = string.match(last, '^(%d+)-(%d+)$')
  q = tonumber(q)
  if q >= 1000000000 and q + draw % 1048576 + n < 4294967295 then
    ms_digits, seq = s, q + 1 + draw % 1048576
  else
    ms_digits = string.format('%.0f', s + 1)
  end
end
