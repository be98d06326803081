-- Take the results of handlers from `common`, behind a line feed: for each its place among the named jobs, the duration
-- in ms, the length of the value in bytes, a flag or `-`, each with a blank, and the value. results_of(ids) returns
-- number -> {duration, flags, value}.
--- NEEDS  common
--- SETS   common
--- GIVES  results_of
local results_text = nil
if string.find(common, '\n', 1, true) then
  common, results_text = string.match(common, '^([^\n]*)\n(.*)$')
end
local function results_of(ids)
  local values, at = {}, 1
  while results_text and at <= #results_text do
    local place, ms, size, flags, behind = string.match(results_text, '^(%d+) (%d+) (%d+) (%S+) ()', at)
    if not place then
      break
    end
    at = behind + size
    if ids[tonumber(place)] then
      values[ids[tonumber(place)]] = {ms, flags == '-' and '' or flags, string.sub(results_text, behind, at - 1)}
    end
  end
  return values
end
