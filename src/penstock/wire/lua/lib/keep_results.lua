-- keep_results(ids, state, values) keeps the results of jobs that end in this call, before they are removed: of those
-- whose record has a field `k` above 0. values = number -> duration, flag and value, as lib/read_results has them, or nil.
-- The values are written first: a full server refuses that, and then only the states are kept.
--- NEEDS  ready held tally expiry meta uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses ~= '' and string.find(uses, 'k', 1, true) then
  --@include lib/drop_results (gives: results_from)
  local function kept_for(record, from)
    local span = string.match(record, '^[1+][;lt=%d]*;k=(%d+)', from) or string.match(record, '^[1+][;lt=%d]*;p=[^;\n]*;k=(%d+)', from)
    return span and #span < 14 and tonumber(span) or 0
  end
  keep_results = function(ids, state, values)
    if #ids == 0 then
      return
    end
    local records, counts, seen = redis.call('HMGET', held, unpack(ids)), {}, {}
    if string.find(uses, 'r', 1, true) then
      counts = redis.call('HMGET', tally, unpack(ids))
    end
    local most, find, sub = tonumber(redis.call('HGET', meta, 'result_size')) or 65536, string.find, string.sub
    local results, ends, n, bytes = {}, {}, 0, 0
    local begin, head, size, span, last, till = state .. string.format(' %.0f ', now), nil, 0, 0, nil, nil
    for i = 1, #ids do
      local id, record, from, attempt = ids[i], records[i], 1, '0 '
      if not record then
        local entry = redis.call('XRANGE', ready, id, id)[1]
        record = entry and entry[2][2] or ''
      elseif string.byte(record) == 64 then -- it was delivered
        from, attempt = find(record, '\n', 1, true) + 1, '1 '
        if counts[i] then
          local nacks, crashes = string.match(counts[i], '^%S+ (%d+) (%d+)')
          attempt = string.format('%d ', 1 + nacks + crashes)
        end
      end
      if not head or sub(record, from, from + size) ~= head then -- mostly equal to the record before
        span = kept_for(record, from)
        head = string.match(record, '^[1+][;ltk=%d]*[^;ltk=%d\n]', from)
        head = head and not find(head, 'p', 1, true) and head or nil
        size = head and #head - 1
      end
      if span > 0 and not seen[id] then
        local result, name = values and values[id] or '0\n', '>' .. id
        if values then
          local _, stop = find(result, '^%d+ ?%l*\n')
          if not stop then
            result = '0\n'
          elseif #result - stop > most then
            result = string.match(result, '^%d+') .. ' large\n'
          end
        end
        if span ~= last then
          last, till = span, string.format('%.0f', results_from + now + span)
        end
        result = begin .. attempt .. result
        seen[id], bytes = true, bytes + #result
        results[n + 1], results[n + 2], ends[n + 1], ends[n + 2] = name, result, till, name
        n = n + 2
      end
    end
    if n > 0 then
      if not tonumber(redis.pcall('HSET', held, unpack(results))) then -- OOM
        bytes = 0
        for i = 2, n, 2 do
          local front, value = string.match(results[i], '^([^\n]*)\n(.*)$')
          results[i] = value == '' and results[i] or front .. ' full\n'
          bytes = bytes + #results[i]
        end
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(results))
      end
      redis.call('ZADD', expiry, unpack(ends))
      redis.call('HINCRBY', meta, 'kept_bytes', bytes)
      drop_results(100 + 2 * #ids)
    end
  end
end
