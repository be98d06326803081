-- keep_results(ids, state, values) keeps the results of jobs that end in this call, before they are removed: of those
-- whose record has a field `k` above 0. values = number -> {duration ms, flags, JSON}, or nil. The values are written
-- first: a full server refuses that, and then only the states are kept.
--- NEEDS  ready held tally expiry meta uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses ~= '' and string.find(uses, 'k', 1, true) then
  --@include lib/drop_results (gives: results_from)
  local function kept_for(record, from)
    local span = string.match(record, '^[1+][;lt=%d]*;k=(%d+)', from) or string.match(record, '^[1+][;lt=%d]*;p=[^;\n]*;k=(%d+)', from)
    return span and #span < 14 and tonumber(span) or 0
  end
  local function paired(names, values)
    local pairs = {}
    for i = 1, #names do
      pairs[i * 2 - 1], pairs[i * 2] = names[i], values[i]
    end
    return pairs
  end
  keep_results = function(ids, state, values)
    if #ids == 0 then
      return
    end
    local records, counts, seen = redis.call('HMGET', held, unpack(ids)), {}, {}
    if string.find(uses, 'r', 1, true) then
      counts = redis.call('HMGET', tally, unpack(ids))
    end
    local most, find, sub, n = tonumber(redis.call('HGET', meta, 'result_size')) or 65536, string.find, string.sub, 0
    local names, wholes, heads, flagged, ends, bytes = {}, {}, {}, {}, {}, 0
    local begin, none = state .. string.format(' %.0f ', now), {'0', '', ''}
    local head, span, last, till = nil, 0, nil, nil
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
      if not head or sub(record, from, from + #head - 1) ~= head then -- mostly equal to the record before
        span = kept_for(record, from)
        head = string.match(record, '^[1+][;ltk=%d]*;[^;ltk=%d\n]', from)
        head = head and not find(head, 'p', 1, true) and head or nil
      end
      if span > 0 and not seen[id] then
        seen[id], n = true, n + 1
        local given, name = values and values[id] or none, '>' .. id
        local flags, value = given[2], given[3]
        if #value > most then
          flags, value = 'large', ''
        end
        names[n], heads[n], flagged[n] = name, begin .. attempt .. given[1], value ~= '' and 'full' or flags
        wholes[n] = heads[n] .. (flags ~= '' and ' ' .. flags or '') .. '\n' .. value
        bytes = bytes + #wholes[n]
        if span ~= last then
          last, till = span, string.format('%.0f', results_from + now + span)
        end
        ends[n * 2 - 1], ends[n * 2] = till, name
      end
    end
    if n > 0 then
      if not tonumber(redis.pcall('HSET', held, unpack(paired(names, wholes)))) then -- OOM
        bytes = 0
        for i = 1, n do
          wholes[i] = heads[i] .. (flagged[i] ~= '' and ' ' .. flagged[i] or '') .. '\n'
          bytes = bytes + #wholes[i]
        end
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(paired(names, wholes)))
      end
      redis.call('ZADD', expiry, unpack(ends))
      redis.call('HINCRBY', meta, 'kept_bytes', bytes)
      drop_results(100 + 2 * #ids)
    end
  end
end
