-- Take the results of handlers from `common`, behind a line feed: for each its place among the named jobs, the duration
-- in ms, the length of the value in bytes, a flag or `-`, each with a blank, and the value. results_of(ids) returns
-- number -> {duration, flags, value}; nil = there are none.
--- NEEDS  common nothing
--- SETS   common
--- GIVES  results_of
local results_of, line_end = nothing, string.find(common, '\n', 1, true)
if line_end then
  local text = string.sub(common, line_end + 1)
  common = string.sub(common, 1, line_end - 1)
  results_of = function(ids)
    local values, at = {}, 1
    while at <= #text do
      local place, ms, size, flags, behind = string.match(text, '^(%d+) (%d+) (%d+) (%S+) ()', at)
      if not place then
        break
      end
      at = behind + size
      if ids[tonumber(place)] then
        values[ids[tonumber(place)]] = {ms, flags == '-' and '' or flags, string.sub(text, behind, at - 1)}
      end
    end
    return values
  end
end
