-- List n numbers from ms_digits and seq.
--- NEEDS  ms_digits seq n
--- GIVES  first final ids
local prefix = ms_digits .. '-'
local first = prefix .. seq
local final = n == 1 and first or prefix .. (seq + n - 1)
local ids = {first}
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
