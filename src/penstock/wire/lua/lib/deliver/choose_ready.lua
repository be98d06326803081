-- Choose up to n jobs at the head of ready. Nothing is written. They are not for the fast lane (fits) if another job comes first, or
-- if one has a lease or ttl of its own. Gives the reply, which has number and record of each job, and held_pairs, number and
-- note and record of each; its first place is left for deliver_ready. cut: the last number that was taken; first_end, first_due and
-- has_read_all: as in choose_jobs.
--- KEYS   ready active scheduled
--- NEEDS  fits nonce n owner epoch lease now now_ms end_of
--- SETS   fits
--- GIVES  first_end first_due reply held_pairs took cut has_read_all
local first_end = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES')[2]
first_end = first_end and end_of(first_end)
local first_due = tonumber(redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')[2])
fits = not (first_end and first_end <= now or first_due and first_due <= now)
local reply, held_pairs = {5, nonce, 0, epoch, lease, now}, {0}
local took, bytes, cut, has_read_all = 0, 0, nil, false
if fits and n > 0 then
  local byte, note, at = string.byte, '@' .. now_ms .. ' ' .. owner .. '\n', 2
  repeat
    local step, had = math.min(n - took, 100), took -- had: taken before this step
    local entries = redis.call('XRANGE', ready, cut and '(' .. cut or '-', '+', 'COUNT', step == 1 and '1' or step)
    for i = 1, #entries do
      local job = entries[i]
      local id, record = job[1], job[2][2]
      local sign, field = byte(record, 2, 3)
      if sign == 59 and (field == 108 or field == 116) then -- ;l= or ;t=
        fits = false
        break
      end
      held_pairs[at], held_pairs[at + 1] = id, note .. record
      reply[at + 5], reply[at + 6] = id, record
      at, took, bytes = at + 2, took + 1, bytes + #record
      if bytes >= 1048576 then -- a call delivers about 1 MiB
        break
      end
    end
    cut, has_read_all = took > 0 and reply[at + 3], #entries < step and took - had == #entries
  until not fits or #entries < step or took == n or bytes >= 1048576
elseif fits then
  redis.call('XLEN', ready) -- check its type
end
