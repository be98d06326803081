--- Pause a schedule, which then has no tick, or resume it. One that was orphaned then belongs to no app.
--- KEYS     @queue
--- ARGV     nonce name next
---          next  '' = pause it; else resume it: the time of its next tick, ms
--- BOUNDS   next? 0 9007199254740991
--- META     v seen off
--- RETURNS  {1, nonce, done}              done: 1 = paused or resumed; 0 = it was so before, and nothing changed
---          {0, nonce}                    there is no such schedule
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument: next
--@include lib/checks/check_version
--@include lib/meta/now (gives: changes)
--@include lib/read/schedule_entry (gives: read_entry, write_entry)
local last_run, last_tick, runs, skipped, is_paused, hashes, rest = read_entry(name)
local is_orphaned = last_run and #is_paused > 1
local wanted, wake_empty = next == '' and '1' or '0', redis.call('LLEN', wake) == 0
redis.call('ZCARD', ticks)
if not last_run then
  return {0, nonce}
end
if is_paused ~= wanted then
  redis.call('HDEL', held, '-')
  rest = is_orphaned and string.match(rest, '\n.*$') or rest
  write_entry(name, last_run, last_tick, runs, skipped, wanted, hashes, rest)
  if wanted == '1' then
    redis.call('ZREM', ticks, name)
  else
    redis.call('ZADD', ticks, next, name)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if wanted == '0' and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
end
return {1, nonce, is_paused == wanted and 0 or 1}
