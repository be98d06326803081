-- Assign numbers to n new jobs, in this ms, or in that of the last number if it is later. seq has ten digits. It begins
-- at random in each ms, and each call leaves a random gap. So a number that a failover has lost is not given to another
-- job.
--- NEEDS  nonce producer now last n
--- GIVES  ms first final ids ttl_ends
local draw = tonumber(string.sub(producer, -16, -9), 16) * (nonce % 1048576) % 8388593
local ms, seq = math.max(now, 1000000000000), 1000000000 + draw
if last then
  local s = tonumber(string.sub(last, 1, -12))
  if not s or s >= ms then
    local q
    s, q = string.match(last, '^(%d+)-(%d+)$')
    s, q = tonumber(s), tonumber(q)
    if s >= ms then
      ms = s + 1
      if q >= 1000000000 and q + draw % 1048576 + n < 4294967295 then
        ms, seq = s, q + 1 + draw % 1048576
      end
    end
  end
end
local prefix = string.format('%.0f-', ms)
local first = prefix .. (seq == 1000000000 and '1000000000' or seq)
local final = n == 1 and first or prefix .. (seq + n - 1)
local ids, ttl_ends = {first}, nil
if n > 1 then -- format only each tenth number: that costs three times a concatenation
  local digits = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
  local digit, stem = seq % 10, prefix .. (seq - seq % 10) / 10
  for i = 2, n do
    digit = digit + 1
    if digit == 10 then
      digit, stem = 0, prefix .. (seq + i - 1) / 10
    end
    ids[i] = stem .. digits[digit]
  end
end
