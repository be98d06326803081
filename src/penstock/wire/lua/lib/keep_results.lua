-- keep_results(ids, state, given) keeps the results of jobs that end in this call, before they are removed. given = {ids,
-- values, spans}: those that came with the call, as lib/read_results has them; nil = only the states are kept, of jobs
-- whose record has a field `k` above 0. The results are written first: a full server refuses that, and keeps the states then.
--- NEEDS  ready held tally expiry meta uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses ~= '' and string.find(uses, 'k', 1, true) then
  --@include lib/drop_results (gives: results_from)
  --@include lib/states_to_keep
  local function without_values(results)
    for i = 2, #results, 2 do
      local front, value = string.match(results[i], '^([^\n]*)\n(.*)$')
      results[i] = value == '' and results[i] or front .. ' full\n'
    end
    return results
  end
  keep_results = function(ids, state, given)
    if #ids == 0 then
      return
    end
    given = given or states_to_keep(ids)
    local names, values, spans, results, last, begin = given.ids, given.values, given.spans, {}, nil, nil
    local usual = spans[1]
    local most, ended = tonumber(redis.call('HGET', meta, 'result_size')) or 65536, state .. string.format(' %.0f ', now)
    for i = 1, #names do
      local result, span = values[i], spans[i] or usual
      if #result > most and #result - (string.find(result, '\n', 1, true) or 0) > most then
        result = string.match(result, '^%d* ?%d*') .. ' large\n'
      end
      if span ~= last then
        begin, last = ended .. span .. ' ', span
      end
      results[i * 2 - 1], results[i * 2] = '>' .. names[i], begin .. result
    end
    if #names > 0 then
      if not tonumber(redis.pcall('HSET', held, unpack(results))) then -- OOM
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(without_values(results)))
      end
      local ends, first, size, bytes = {}, 1, 0, 0
      for i = 1, #names do
        size = size + #results[i * 2]
        if i == #names or i == first + 99 or spans[i + 1] ~= spans[i] then
          ends[#ends + 1] = string.format('%.0f', results_from + now + (spans[i] or usual))
          ends[#ends + 1] = '>' .. size .. ' >' .. table.concat(names, ' >', first, i)
          first, size, bytes = i + 1, 0, bytes + size
        end
      end
      redis.call('ZADD', expiry, unpack(ends))
      drop_results(100 + 2 * #ids, #names, bytes)
    end
  end
end
