-- keep_results(ids, state, given) keeps the results of jobs that end in this call, before they are removed. given = {ids,
-- values, spans}: those that came with the call, as lib/read_results has them; nil = only the states are kept, of jobs
-- whose record has a field `k` above 0. The results are written first: a full server refuses that, and keeps the states then.
--- NEEDS  ready held tally expiry meta uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses ~= '' and string.find(uses, 'k', 1, true) then
  --@include lib/drop_results (gives: results_from)
  --@include lib/states_to_keep
  local function without_values(values)
    for i = 1, #values do
      local front, value = string.match(values[i], '^([^\n]*)\n(.*)$')
      values[i] = value == '' and values[i] or front .. ' full\n'
    end
  end
  local function entries(given, ended, most) -- fields and values for held, scores and members for expiry, bytes
    local names, values, spans = given.ids, given.values, given.spans
    local count, usual, results, ends, i, at, bytes = #names, spans[1], {}, {}, 1, 0, 0
    while i <= count do -- up to 100 results with one end
      local first, span, size = i, spans[i] or usual, 0
      local begin, stop = ended .. span .. ' ', math.min(i + 99, count)
      repeat
        local result = values[i]
        if #result > most and #result - (string.find(result, '\n', 1, true) or 0) > most then
          result = string.match(result, '^%d* ?%d*') .. ' large\n'
          values[i] = result
        end
        results[at + 1], results[at + 2] = '>' .. names[i], begin .. result
        size, at, i = size + #result, at + 2, i + 1
      until i > stop or (spans[i] or usual) ~= span
      size = size + (i - first) * #begin
      ends[#ends + 1] = string.format('%.0f', results_from + now + span)
      ends[#ends + 1] = '>' .. size .. ' >' .. table.concat(names, ' >', first, i - 1)
      bytes = bytes + size
    end
    return results, ends, bytes
  end
  keep_results = function(ids, state, given)
    if #ids == 0 then
      return
    end
    given = given or states_to_keep(ids)
    if #given.ids > 0 then
      local most, ended = tonumber(redis.call('HGET', meta, 'result_size')) or 65536, state .. string.format(' %.0f ', now)
      local results, ends, bytes = entries(given, ended, most)
      if not tonumber(redis.pcall('HSET', held, unpack(results))) then -- OOM
        without_values(given.values)
        results, ends, bytes = entries(given, ended, most)
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(results))
      end
      redis.call('ZADD', expiry, unpack(ends))
      drop_results(100 + 2 * #ids, #given.ids, bytes)
    end
  end
end
