-- keep_results(ids, state, values) keeps the results of jobs that end in this call, before they are removed: of those
-- whose record has a field `k` above 0. values = number -> {duration ms, flags, JSON}, or nil. The values are written
-- first: a full server refuses that, and then only the states are kept.
--- NEEDS  ready held tally expiry meta uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses ~= '' and string.find(uses, 'k', 1, true) then
  --@include lib/drop_results (gives: results_from)
  keep_results = function(ids, state, values)
    if #ids == 0 then
      return
    end
    local records, counts, seen = redis.call('HMGET', held, unpack(ids)), {}, {}
    if string.find(uses, 'r', 1, true) then
      counts = redis.call('HMGET', tally, unpack(ids))
    end
    local most = tonumber(redis.call('HGET', meta, 'result_size')) or 65536
    local full_pairs, short_pairs, ends, bytes, short_bytes = {}, {}, {}, 0, 0
    for i = 1, #ids do
      local id, record, from, attempt = ids[i], records[i], 1, '0'
      if not record then
        local entry = redis.call('XRANGE', ready, id, id)[1]
        record = entry and entry[2][2] or ''
      elseif string.byte(record) == 64 then -- it was delivered
        local nacks, crashes = string.match(counts[i] or '', '^%S+ (%d+) (%d+)')
        from, attempt = string.find(record, '\n', 1, true) + 1, string.format('%d', 1 + (nacks or 0) + (crashes or 0))
      end
      local span = string.match(record, '^[1+][;lt=%d]*;k=(%d+)', from) or string.match(record, '^[1+][;lt=%d]*;p=[^;\n]*;k=(%d+)', from)
      span = span and #span < 14 and tonumber(span) or 0
      if span > 0 and not seen[id] then
        seen[id] = true
        local given = values and values[id] or {'0', '', ''}
        local head = state .. string.format(' %.0f ', now) .. attempt .. ' ' .. given[1]
        local flags, value, short = given[2], given[3], head .. ' full\n'
        if #value > most then
          flags, value = 'large', ''
        end
        if value == '' then
          short = head .. (flags ~= '' and ' ' .. flags or '') .. '\n'
        end
        local at, name = #ends, '>' .. id
        local whole = value == '' and short or head .. '\n' .. value
        full_pairs[at + 1], full_pairs[at + 2], bytes = name, whole, bytes + #whole
        short_pairs[at + 1], short_pairs[at + 2], short_bytes = name, short, short_bytes + #short
        ends[at + 1], ends[at + 2] = string.format('%.0f', results_from + now + span), name
      end
    end
    if #ends > 0 then
      if not tonumber(redis.pcall('HSET', held, unpack(full_pairs))) then -- OOM
        bytes = short_bytes
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(short_pairs))
      end
      redis.call('ZADD', expiry, unpack(ends))
      redis.call('HINCRBY', meta, 'kept_bytes', bytes)
      drop_results(100 + 2 * #ids)
    end
  end
end
