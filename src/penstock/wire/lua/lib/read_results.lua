-- Take the results of handlers from `common`, behind a line feed: for each its place among the named jobs, its length in
-- bytes, each with a blank, and the result: the duration in ms, perhaps a blank and a flag, a line feed and the value.
-- results_of(ids) returns number -> result; nil = there are none.
--- NEEDS  common nothing
--- SETS   common
--- GIVES  results_of
local results_of, line_end = nothing, string.find(common, '\n', 1, true)
if line_end then
  local text = common
  common = string.sub(text, 1, line_end - 1)
  results_of = function(ids)
    local values, at, match, sub = {}, line_end + 1, string.match, string.sub
    while at <= #text do
      local place, size, behind = match(text, '^(%d+) (%d+) ()', at)
      local id = place and ids[tonumber(place)]
      if not id then
        break
      end
      at = behind + size
      values[id] = sub(text, behind, at - 1)
    end
    return values
  end
end
