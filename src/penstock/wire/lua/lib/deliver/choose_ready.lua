-- Choose up to n jobs at the head of ready. Nothing is written. Refuses (-20) if another job comes first, or if a job has
-- a lease or ttl of its own. Gives the reply, which has number and record of each job, and held_pairs, number and note and
-- record of each; its first place is left for deliver_ready.
--- KEYS   ready active scheduled
--- NEEDS  nonce n owner epoch lease now now_ms end_of
--- GIVES  head first reply held_pairs took cut exhausted entries_left
local head = redis.call('ZRANGE', active, '0', '0', 'WITHSCORES')
local first = redis.call('ZRANGE', scheduled, '0', '0', 'WITHSCORES')
if head[2] and end_of(head[2]) <= now or first[2] and tonumber(first[2]) <= now then
  return {-20, nonce}
end
local reply, held_pairs = {1, nonce, 0, epoch, lease, now}, {0}
local took, bytes, cut, exhausted, entries_left = 0, 0, nil, false, 0
if n > 0 then
  local byte, note, at = string.byte, '@' .. now_ms .. ' ' .. owner .. '\n', 2
  repeat
    local step, had = math.min(n - took, 100), took
    local entries = redis.call('XRANGE', ready, cut and '(' .. cut or '-', '+', 'COUNT', step == 1 and '1' or step)
    for i = 1, #entries do
      local job = entries[i]
      local id, record = job[1], job[2][2]
      local sign, field = byte(record, 2, 3)
      if sign == 59 and (field == 108 or field == 116) then -- ;l= or ;t=
        return {-20, nonce}
      end
      held_pairs[at], held_pairs[at + 1] = id, note .. record
      reply[at + 5], reply[at + 6] = id, record
      at, took, bytes = at + 2, took + 1, bytes + #record
      if bytes >= 1048576 then -- a call delivers about 1 MiB
        break
      end
    end
    cut, exhausted, entries_left = took > 0 and reply[at + 3], #entries < step, #entries - took + had
  until exhausted or took == n or bytes >= 1048576
else
  redis.call('XLEN', ready) -- check its type
end
