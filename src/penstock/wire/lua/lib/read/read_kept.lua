-- read_kept(id) returns the kept result of a job that has ended: state, time, attempt, duration, flag, value; nil =
-- none is kept, or its time is over. With the flag `next` the value is the number of the job that follows in a chain.
--- KEYS   held
--- NEEDS  now
--- GIVES  read_kept
local function read_kept(id)
  local blocks = redis.call('HMGET', held, '>' .. string.sub(id, 1, -3), '>' .. id)
  for i = 1, 2 do
    local _, stop = string.find(blocks[i] or '', '\n' .. id .. ' ', 1, true)
    if stop then
      local line = i == 1 and '([^\n]*)' or '(.*)$' -- a result of its own may have several lines
      local state, at, span, attempt, duration, value = string.match(blocks[i], '^(%a+) (%d+) (%d+) (%d+) (%d+) ' .. line, stop + 1)
      local flag, next_job = string.match(value or '', '^!(%a+) ?(.*)$')
      return state and at + span > now and {state, at, attempt, duration, flag or '', next_job or value} or nil
    end
  end
end
