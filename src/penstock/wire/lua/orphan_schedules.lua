--- Let schedules wait that no worker of their app has declared for some time: their code is gone. They keep their ticks.
--- KEYS     @queue
--- ARGV     nonce app idle [name...]
---          app   as in schedule
---          idle  ms for which no worker has declared them
---          name  1 to 100
--- BOUNDS   idle 1 9007199254740991
--- META     v seen off
--- RETURNS  {1, nonce, done, code...}     for each: 1 orphaned, 0 not: it is paused, orphaned before, was declared since, has another app
---                                        or none, or there is no such schedule
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument: idle or name
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes, raw)
if #names > 100 then
  return {-19, nonce, 'name', string.sub(names[101], 1, 200)}
end
--@include lib/read/schedule_entry (gives: read_entry, write_entry)
redis.call('ZCARD', ticks)
local codes, done, orphans = {}, 0, {}
for i = 1, #names do
  local entry = {read_entry(names[i])}
  local declared, owner = string.match(entry[7] or '', '^ @(%d+) ([^\n]*)')
  local tick = redis.call('ZSCORE', ticks, names[i])
  codes[i] = 0
  if tick and owner == app and entry[5] == '0' and math.abs(raw - declared) >= tonumber(idle) then
    codes[i], done = 1, done + 1
    entry[5] = string.format('%.0f', math.max(10, tick))
    orphans[done] = {names[i], unpack(entry)}
  end
end
if done > 0 then
  redis.call('HDEL', held, '-') -- it passes on a full server
  for i = 1, done do
    write_entry(unpack(orphans[i]))
    redis.call('ZREM', ticks, orphans[i][1])
  end
  if v and #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
return {1, nonce, done, unpack(codes)}
