-- describe_failure(id, value, text, trace) returns the failures of a job for its mark `e`: a line for each of the last 10,
-- an empty line, and the last trace (protocol/marks.md, Marks). `value` in held names the holder of the failed delivery.
--- KEYS   tally
--- NEEDS  uses now
--- GIVES  describe_failure
local function describe_failure(id, value, text, trace)
  local since, owner = string.match(value, '^@(%d+)%?? ([^\n]*)\n')
  local before = uses_any('marks') and redis.call('HGET', tally, 'e' .. id) or '\n'
  local lines, last = {}, nil
  for line, behind in string.gmatch(before, '([^\n]+)\n()') do
    lines[#lines + 1] = line
    if string.byte(before, behind) == 10 then
      last = string.sub(before, behind + 1)
      break
    end
  end
  local reason = string.gsub(string.sub(text, 1, 200), '%c', ' ')
  local took = since and string.format('%.0f', math.max(0, now - since)) or ''
  lines[#lines + 1] = string.format('%.0f', now) .. '\t' .. took .. '\t' .. (owner or '') .. '\t' .. reason
  trace = trace ~= '' and string.sub(trace, 1, 8192) or last or ''
  return table.concat(lines, '\n', math.max(1, #lines - 9)) .. '\n\n' .. trace
end
