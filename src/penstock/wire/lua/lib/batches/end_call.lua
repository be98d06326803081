-- end_call(field, state, text) notes how a job that a step has called has ended: `field` of tally has its place in the notes of the job that
-- called it. text: the value as JSON, or `!` and a flag; of a dead letter the error. The first end stays. It returns the number of the caller and
-- the name of the step; nil = the caller has ended. Call it behind the first write.
--- KEYS   tally
--- GIVES  end_call
local function end_call(field, state, text)
  local caller = string.match(field, '^n(.*):')
  local head, note = redis.call('HGET', tally, 'n' .. caller), redis.call('HGET', tally, field)
  local front, name, is = string.match(head and note or '', '^(c\t%d+\t([^\t]*)\t%d+ %d+ %S+ %S+ )(%l+)')
  if is == 'open' then
    local count, bytes, rest = string.match(head, '^(%d+) (%d+)( .*)$')
    bytes = bytes - #note + #front + #state + 1
    if text ~= '' and bytes + #text > 1048576 then
      text = '!room'
    end
    redis.call('HSET', tally, field, front .. state .. ' ' .. text, 'n' .. caller, count .. string.format(' %.0f', bytes + #text) .. rest)
  end
  return name and caller, name
end
