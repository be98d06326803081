-- is_span(ms, least) returns if ms is digits only, and at most 100 years.
--- GIVES  is_span
local function is_span(ms, least)
  return string.find(ms, '^%d+$') and ms + 0 >= least and ms + 0 <= 3162240000000
end
