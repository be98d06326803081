-- is_duration(ms, least) returns if ms is digits only, at least `least`, and at most 100 years.
--- GIVES  is_duration
local function is_duration(ms, least)
  return string.find(ms, '^%d+$') and ms + 0 >= least and ms + 0 <= 3162240000000
end
