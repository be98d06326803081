-- states_to_keep(ids) returns what is kept of jobs that end without a result from their consumer, for keep_results: the
-- attempt and the duration 0, of each job whose record has a field `k` above 0; and for how long.
--- KEYS   ready held tally
--- NEEDS  uses
--- GIVES  states_to_keep
local function kept_for(record, from)
  local span = string.match(record, '^[1+][;lt=%d]*;k=(%d+)', from) or string.match(record, '^[1+][;lt=%d]*;p=[^;\n]*;k=(%d+)', from)
  return span and span + 0 > 0 and span + 0 <= 3162240000000 and span or nil
end
local function states_to_keep(ids)
  local records, counts, sub = redis.call('HMGET', held, unpack(ids)), {}, string.sub
  local names, values, spans, seen, n = {}, {}, {}, {}, 0
  if uses_any('counters') then
    counts = redis.call('HMGET', tally, unpack(ids))
  end
  local head, size, span = nil, 0, nil
  for i = 1, #ids do
    local id, record, from, attempt = ids[i], records[i], 1, '0'
    if not record then
      local entry = redis.call('XRANGE', ready, id, id)[1]
      record = entry and entry[2][2] or ''
    elseif string.byte(record) == 64 then -- it was delivered
      from, attempt = string.find(record, '\n', 1, true) + 1, '1'
      if counts[i] then
        local nacks, crashes = string.match(counts[i], '^%S+ (%d+) (%d+)')
        attempt = string.format('%d', 1 + nacks + crashes)
      end
    end
    if not head or sub(record, from, from + size) ~= head then -- mostly equal to the record before
      span = kept_for(record, from)
      head = string.match(record, '^[1+][;ltk=%d]*[^;ltk=%d\n]', from)
      head = head and not string.find(head, 'p', 1, true) and head or nil
      size = head and #head - 1
    end
    if span and not seen[id] then
      n, seen[id] = n + 1, true
      names[n], values[n], spans[n] = id, attempt .. ' 0 ', span
    end
  end
  return {ids = names, values = values, spans = spans}
end
