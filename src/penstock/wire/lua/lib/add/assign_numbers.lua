-- Assign numbers to n new jobs.
--- NEEDS  nonce seed now last n
--- GIVES  ms first final ids ttl_ends
local now_ms = string.format('%.0f', math.max(now, 1000000000000))
--@include lib/add/next_number (gives: ms_digits)
--@include lib/add/number_list
local ms, ttl_ends = tonumber(ms_digits), nil
