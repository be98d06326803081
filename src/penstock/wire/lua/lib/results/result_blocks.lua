-- result_blocks(given, state, most) adds results to their blocks (protocol/results.md); it writes nothing. It returns fields and
-- values for held, scores and members for expiry, the members that these replace, and the bytes that are added. most: bytes
-- of the longest value that is kept; `!large` takes the place of a longer one in given.values. A few results are blocks of
-- their own: adding each to the block of a hundred would copy that as often.
--- KEYS   held expiry
--- NEEDS  now results_from
--- GIVES  result_blocks
local function result_blocks(given, state, most)
  local ids, values, spans, sub, find = given.ids, given.values, given.spans, string.sub, string.find
  local pairs_of_held, pairs_of_expiry, replaced, bytes = {}, {}, {}, 0
  local names, fields, lines, ends, place = {}, {}, {}, {}, {}
  local has_lines = find(table.concat(values), '\n', 1, true) -- some value has several lines
  local is_few = #ids < 10
  local usual = math.min(most, has_lines and -1 or 200)
  local span, front, stop, last, own, at = nil, nil, nil, nil, nil, nil
  for i = 1, #ids do
    local id, result, name = ids[i], values[i], is_few and ids[i]
    if #result > usual then
      local from = string.match(result, '^%d* %d* ()') or 1
      if #result >= from + most and string.byte(result, from) ~= 33 then
        result = sub(result, 1, from - 1) .. '!large'
        values[i] = result
      end
      name = (is_few or #result > 200 or find(result, '\n', 1, true)) and id
    end
    name = name or sub(id, 1, -3)
    if i == 1 or spans[i] and spans[i] ~= span then
      span, last = spans[i], nil
      front, stop = ' ' .. state .. string.format(' %.0f ', now) .. span .. ' ', results_from + now + span
    end
    if name ~= last then
      local k = place[name] or #names + 1
      if k > #names then
        place[name], names[k], fields[k], lines[k], ends[k] = k, name, '>' .. name, {}, stop
      end
      last, own, ends[k] = name, lines[k], math.max(ends[k], stop)
      at = #own
    end
    own[at + 1], own[at + 2], own[at + 3], own[at + 4] = '\n', id, front, result
    at = at + 4
  end
  local blocks = is_few and {} or redis.call('HMGET', held, unpack(fields))
  for k = 1, #names do
    local count, text, block = #lines[k] == 4 and '1' or #lines[k] / 4, table.concat(lines[k]), blocks[k]
    if block then
      local from = find(block, '\n', 1, true)
      local before = sub(block, 1, from - 1)
      local member = '>' .. #block .. ' ' .. before .. ' ' .. names[k]
      replaced[#replaced + 1], bytes = member, bytes - #block
      count, text = count + before, sub(block, from) .. text
      ends[k] = math.max(ends[k], tonumber(redis.call('ZSCORE', expiry, member)) or 0)
    end
    text = count .. text
    pairs_of_held[2 * k - 1], pairs_of_held[2 * k], bytes = fields[k], text, bytes + #text
    pairs_of_expiry[2 * k - 1] = string.format('%.0f', ends[k])
    pairs_of_expiry[2 * k] = '>' .. #text .. ' ' .. count .. ' ' .. names[k]
  end
  return pairs_of_held, pairs_of_expiry, replaced, bytes
end
