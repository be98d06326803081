-- Take the results of handlers from the call. `common` tells of them behind a line feed: the time in ms for which they
-- are kept, or one for each job, separated by blanks. They follow the numbers, one for each job; '' = nothing is
-- kept of it. results_of(ids, codes) returns for keep_results those of the jobs with code 1, or of all if there are no codes;
-- nil = the call has no results.
--- NEEDS  nonce common numbers nothing
--- SETS   common numbers
--- GIVES  results_of
local results_of, line_end = nothing, string.find(common, '\n', 1, true)
if line_end then
  local times, spans = string.sub(common, line_end + 1), {}
  common = string.sub(common, 1, line_end - 1)
  --@include lib/checks/is_duration
  for span in string.gmatch(times, '[^ ]+') do
    if not is_duration(span, 0) then
      return {-19, nonce, 'kept', string.sub(span, 1, 200)}
    end
    spans[#spans + 1] = span
  end
  local first = #numbers - #numbers / (common == '*' and 3 or 2)
  local values = {unpack(numbers, first + 1)}
  numbers = {unpack(numbers, 1, first)}
  local some = #spans == 0
  for i = 1, #values do
    some = some or values[i] == ''
  end
  results_of = function(ids, codes)
    if not some and #codes == 0 then
      return {ids = ids, values = values, spans = spans}
    end
    local names, own, times, n = {}, {}, {}, 0
    for i = 1, #ids do
      if values[i] ~= '' and (codes[i] or 1) == 1 and spans[1] then
        n = n + 1
        names[n], own[n], times[n] = ids[i], values[i], spans[i] or spans[1]
      end
    end
    return {ids = names, values = own, spans = times}
  end
end
