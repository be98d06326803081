-- Numbers: this ms, or the last one's, never lower. seq starts at 1000000000: it always has ten digits.
local ms, seq = now, 1000000000
if last then
  local s = tonumber(string.sub(last, 1, -12))
  if not s or s >= ms then
    local q
    s, q = string.match(last, '^(%d+)-(%d+)$')
    s, q = tonumber(s), tonumber(q)
    if s >= ms then
      ms, seq = s, q + 1
      if seq < 1000000000 or seq + n > 4294967295 then
        ms, seq = s + 1, 1000000000
      end
    end
  end
end
local prefix = string.format('%.0f-', ms)
local first = prefix .. (seq == 1000000000 and '1000000000' or seq)
local final = n == 1 and first or prefix .. (seq + n - 1)
local ids, lives = {first}, nil
if n > 1 then -- only each tenth number is formatted, which costs three times a concatenation
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
