-- list_steps(id) returns what a job waits for, as the head of its notes has it, and a line for each of its steps: kind, time, name, and of
-- a sleep its ms, of a called job its part, total, print, number and state, with a tab between two of them. Kinds: r run, s sleep, c a called
-- job; w a signal, t a timeout of a wait. '' = it has no notes.
--- KEYS   tally
--- NEEDS  uses
--- GIVES  list_steps
local function list_steps(id)
  local head = uses_any('notes') and redis.call('HGET', tally, 'n' .. id)
  if not head then
    return ''
  end
  local count, voided, wait = string.match(head, '^(%d+) %d+ %d+ (%d+) (.*)$')
  local lines, fields = {wait}, {'n' .. id .. ':0'}
  for place = 1, math.min(count, 1000) do
    fields[place + 1] = 'n' .. id .. ':' .. string.format('%.0f', place)
  end
  local notes = redis.call('HMGET', tally, unpack(fields))
  for place = 2, #notes do
    local kind, from = string.match(notes[place] or '', '^(%l)\t%d+\t[^\t]*\t()')
    if kind == 'c' then
      lines[#lines + 1] = string.match(notes[place], '^c\t%d+\t[^\t]*\t%d+ %d+ %S+ %S+ %l+')
    elseif kind then
      lines[#lines + 1] = kind == 's' and notes[place] or string.sub(notes[place], 1, from - 1)
    end
  end
  for place, name, kind, at in string.gmatch(notes[1] or '', '()\n([^\t]*)\t(%l)\t(%d+)') do
    if kind == 's' or place > tonumber(voided) then
      lines[#lines + 1] = (kind == 's' and 'w' or kind) .. '\t' .. at .. '\t' .. name .. '\t'
    end
  end
  return table.concat(lines, '\n')
end
