--- Read schedules: those whose tick is near, those with given names, or a page of all. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce cursor [name...]
---          cursor  '' = the named ones; '+' and ms = those whose tick comes within this time, at most 100; else that of HSCAN:
---                  0 begins
---          name    1 to 100
--- META     v epoch unscheduled
--- RETURNS  {1, nonce, now, next, epoch, cursor, unscheduled, schedules: (name, tick, entry)...}  now: TIME in ms, not the
---                               queue's clock; next: ms until the first tick that is not in the reply, 0 = it is due, -1 =
---                               none. cursor: of the next page, 0 = this is the last. unscheduled: as in meta. tick: ms, '' =
---                               paused. entry: of a page without the record. A reply has about 1 MiB, and at least one
---                               schedule, if there is one
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument: cursor
--@include lib/checks/check_version
local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local entries, stop, bytes, is_page = {}, '0', 0, false
--@include lib/checks/is_cursor
local span = string.match(cursor, '^%+(.*)$')
if cursor ~= '' and not is_cursor(span or cursor) then
  return {-19, nonce, 'cursor', string.sub(cursor, 1, 200)}
end
if span then
  names = redis.call('ZRANGE', ticks, '-inf', string.format('%.0f', now + span), 'BYSCORE', 'LIMIT', 0, 100)
elseif cursor ~= '' then
  is_page = true
  local page = redis.call('HSCAN', schedules, cursor, 'COUNT', 16)
  stop, names = page[1], {}
  for i = 1, #page[2], 2 do
    names[#names + 1], entries[#entries + 1] = page[2][i], page[2][i + 1]
  end
end
local reply, shown = {1, nonce, now, -1, epoch or '', stop, unscheduled}, 0
for i = 1, #names do
  if bytes < 1048576 then
    local name, at = names[i], #reply
    local entry = entries[i] or redis.call('HGET', schedules, name)
    if entry then
      entry = is_page and string.match(entry, '^[^\n]*\n[^\n]*') or entry
      local tick = redis.call('ZSCORE', ticks, name)
      reply[at + 1], reply[at + 2], reply[at + 3] = name, tick and string.format('%.0f', tick) or '', entry
      bytes = bytes + #entry
    end
    shown = i
  end
end
local rank = span and shown or 0
local first = redis.call('ZRANGE', ticks, rank, rank, 'WITHSCORES')
if first[2] then
  reply[4] = math.max(0, first[2] - now)
end
return reply
