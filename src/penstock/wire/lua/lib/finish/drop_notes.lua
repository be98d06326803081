-- drop_notes(ids) removes the notes of jobs that end, and the outcomes of their waits at the place 0; with `b` in front of a number the
-- values of its batch. It removes 2,000 places and about 64 MiB in a script, as the server frees their memory before
-- it answers. The heads go at once. The field `n` of tally names the first and the last piece of the list of the others, for later calls.
-- A piece, `n:` and its number, has up to about 1,500 entries: number, notes and bytes of a job, each followed by a blank. A call reads
-- and writes the first pieces and the last one. It returns true if notes are left.
--- KEYS   tally
--- NEEDS  notes_left note_bytes_left
--- SETS   notes_left note_bytes_left
--- GIVES  drop_notes
local function drop_notes(ids)
  local listed, fields, entries, rest = redis.call('HGET', tally, 'n'), {}, {}, ''
  local first, last = string.match(listed or '1 0', '^(%d+) (%d+)$')
  first, last = tonumber(first), tonumber(last)
  for i = 1, #ids do
    fields[i] = 'n' .. ids[i]
  end
  local heads = #ids > 0 and redis.call('HMGET', tally, unpack(fields)) or {}
  fields = {}
  for i = 1, #ids do
    if heads[i] then
      fields[#fields + 1] = 'n' .. ids[i]
      local count, bytes = string.match(heads[i], '^(%d+) (%d+)')
      count = string.sub(ids[i], 1, 1) == 'b' and count + 0 > 10000 and '10000' or count -- members behind them have no field
      entries[#entries + 1] = ids[i] .. ' ' .. count .. ' ' .. bytes .. ' '
    end
  end
  local function take(text) -- name the notes of the first entries in `fields`; return the other entries
    local at = 1
    while at <= #text and notes_left > 0 and note_bytes_left > 0 do
      local id, count, bytes, behind = string.match(text, '^(%S+) (%d+) (%d+) ()', at)
      local from = math.max(0, count - notes_left + 1)
      for place = from, count do
        fields[#fields + 1] = 'n' .. id .. ':' .. string.format('%.0f', place)
      end
      notes_left, note_bytes_left, at = notes_left - (count - from + 1), note_bytes_left - bytes, behind
      if from > 0 then
        return id .. ' ' .. string.format('%.0f', from - 1) .. ' ' .. bytes .. ' ' .. string.sub(text, behind)
      end
    end
    return string.sub(text, at)
  end
  while first <= last and rest == '' and notes_left > 0 and note_bytes_left > 0 do
    local piece = string.format('n:%.0f', first)
    rest = take(redis.call('HGET', tally, piece) or '')
    if rest == '' then
      fields[#fields + 1], first, notes_left = piece, first + 1, notes_left - 1
    end
  end
  local added = table.concat(entries)
  if first > last then
    added = take(added)
  end
  local has_left = first <= last or added ~= ''
  if listed and not has_left then
    fields[#fields + 1] = 'n'
  end
  if #fields > 0 then
    redis.call('HDEL', tally, unpack(fields))
  end
  if rest ~= '' then
    redis.call('HSET', tally, string.format('n:%.0f', first), rest)
  end
  if added ~= '' then
    local tail = first <= last and redis.call('HGET', tally, string.format('n:%.0f', last)) or ''
    if first > last or #tail >= 20000 then
      last, tail = last + 1, ''
    end
    redis.call('HSET', tally, string.format('n:%.0f', last), tail .. added)
  end
  local bounds = string.format('%.0f %.0f', first, last)
  if has_left and bounds ~= listed then
    redis.call('HSET', tally, 'n', bounds)
  end
  return has_left
end
