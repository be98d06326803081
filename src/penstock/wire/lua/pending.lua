--- Read a page of the deliveries that have not ended, without their jobs. recover can take them over.
--- KEYS     @queue
--- ARGV     nonce score skip idle
---          score  '-inf' for the first page, then that of the last reply
---          skip   0 for the first page, then that of the last reply
---          idle   ms: only deliveries that began at least so long ago
--- BOUNDS   skip 0 9007199254740991  idle 0 3162240000000
--- META     v epoch uses seen off
--- RETURNS  {1, nonce, now, epoch, score, skip, deliveries: (number, receipt, delivered)...}  score: '' on the last page; up to 2000
---                                        deliveries a page; some may be on two pages
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
if not v and redis.call('EXISTS', held) > 0 then
  return {-8, nonce}
end
if score ~= '-inf' and not string.find(score, '^%-?%d+$') then
  return {-19, nonce, 'score', string.sub(score, 1, 200)}
end
--@include lib/meta/now
local reply = {1, nonce, now, epoch or '', '', 0}
local first = redis.call('ZCOUNT', active, '-inf', '(' .. score) + skip
local page = redis.call('ZRANGE', active, first, first + 1999, 'WITHSCORES')
local last, same = score, tonumber(skip)
local has_counters, has_ttls = uses_any('counters'), uses_any('ttls')
for i = 1, #page, 2 do
  local id, at = page[i], page[i + 1]
  same, last = at == last and same + 1 or 1, at
  local value = redis.call('HGET', held, id) or ''
  local delivered = tonumber(string.match(value, '^@(%d+)'))
  local ends = has_ttls and redis.call('ZSCORE', expiry, id)
  if delivered and now - delivered >= tonumber(idle) and not (ends and tonumber(ends) <= now) then
    local number, ended = string.match(has_counters and redis.call('HGET', tally, id) or '1', '^(%d+)(%+?)')
    if ended == '' then -- else a claim has ended the delivery: the next reserve takes the job
      reply[#reply + 1] = id
      reply[#reply + 1] = number .. string.format('-%03x', at % 4096)
      reply[#reply + 1] = string.format('%.0f', delivered)
    end
  end
end
if #page == 4000 then -- those of one score are gone through again, unless they are all that this page held
  reply[5], reply[6] = last, last == page[2] and same or 0
end
return reply
