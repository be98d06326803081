-- end_wait(id, head, name, kind, value) notes the outcome of a wait for this name: kind `s`, a signal with its value, or `t`, its time is over.
-- The job does not wait for it any more. `head` is that of its notes. find_outcome has found none.
--- KEYS   tally
--- NEEDS  now
--- GIVES  end_wait
local function end_wait(id, head, name, kind, value)
  local count, bytes, redriven, wait = string.match(head, '^(%d+) (%d+) (%d+ %d+) (.*)$')
  local outcome = '\n' .. name .. '\t' .. kind .. '\t' .. string.format('%.0f', now) .. '\t' .. value
  if string.match(wait, '^%d+ (.*)$') == name then
    wait = '-'
  end
  redis.call('HSET', tally, 'n' .. id, count .. string.format(' %.0f ', bytes + #outcome) .. redriven .. ' ' .. wait,
    'n' .. id .. ':0', (redis.call('HGET', tally, 'n' .. id .. ':0') or '') .. outcome
  )
end
