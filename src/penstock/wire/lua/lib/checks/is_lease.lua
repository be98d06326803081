-- is_lease(ms, least) returns if ms is digits only, at most 24 days, and its end fits into a score (scores).
--- NEEDS  now
--- GIVES  is_lease
local function is_lease(ms, least)
  return string.find(ms, '^%d+$') and tonumber(ms) >= least and tonumber(ms) <= 2073600000 and now + ms <= 3934712855551
end
