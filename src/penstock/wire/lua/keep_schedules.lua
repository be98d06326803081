--- Note that a worker declares schedules, so that no other worker orphans them.
--- KEYS     @queue
--- ARGV     nonce [name...]
---          name  1 to 100
--- META     v seen off
--- RETURNS  {1, nonce, done, code...}     for each: 1 noted, or noted before, 2 it is orphaned: `schedule` takes it back, 0 there is no
---                                        such schedule, or it has no app; done: how many are noted
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument: name
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes, raw)
if #names > 100 then
  return {-19, nonce, 'name', string.sub(names[101], 1, 200)}
end
--@include lib/read/schedule_entry (gives: read_entry, write_entry)
local codes, done, kept = {}, 0, {}
for i = 1, #names do
  local entry = {read_entry(names[i])}
  local declared, app = string.match(entry[7] or '', '^ @(%d+) ([^\n]*)')
  codes[i] = not declared and 0 or #entry[5] > 1 and 2 or 1
  done = done + codes[i] % 2
  if codes[i] == 1 and math.abs(raw - declared) >= 5000 then
    entry[7] = string.format(' @%.0f ', raw) .. app .. string.match(entry[7], '\n.*$')
    kept[#kept + 1] = {names[i], unpack(entry)}
  end
end
if #kept > 0 then
  redis.call('HDEL', held, '-') -- it passes on a full server
  for i = 1, #kept do
    write_entry(unpack(kept[i]))
  end
  if v and #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
return {1, nonce, done, unpack(codes)}
