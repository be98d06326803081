-- Assign numbers to n new jobs.
--- NEEDS  nonce seed now last n
--- GIVES  ms first final ids ttl_ends
local now_ms = string.format('%.0f', math.max(now, 1000000000000))
--@include lib/next_number (gives: ms_digits, seq)
local ms, prefix = tonumber(ms_digits), ms_digits .. '-'
local first = prefix .. seq
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
