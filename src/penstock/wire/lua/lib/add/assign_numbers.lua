-- Assign numbers to n new jobs.
--- NEEDS  nonce seed now last n
--- GIVES  ms first final ids
local now_ms = string.format('%.0f', math.max(now, 1000000000000))
--@include lib/add/next_number (gives: ms_digits)
--@include lib/add/number_list
local ms = tonumber(ms_digits)
