--- Create a schedule, or give it another value. Its jobs are added by `tick`.
--- KEYS     @queue
--- ARGV     nonce create name next hash force value
---          create  as in enqueue: a queue may have schedules before its first job
---          name    the schedule: 1 to 200 bytes, printable
---          next    time of its first tick, ms
---          hash    hash of the value: 16 hex digits
---          force   1 = also a value that was replaced before
---          value   its spec, a line feed, and the record of its jobs
--- BOUNDS   next 0 9007199254740991
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, epoch, created, what}  what: 0 = it has this value already; 1 = it is new; 2 = it had another one;
---                                        3 = this value is one of the last 8 that were replaced: nothing changed
---          {-5, nonce}                   no such queue: register it, then create
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument: next, hash or create
--@include lib/checks/check_version
if #hash ~= 16 or string.find(hash, '[^%da-f]') then
  return {-19, nonce, 'hash', string.sub(hash, 1, 200)}
end
--@include lib/meta/now (gives: changes)
local created = 0
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch, created = create, 1
  --@include lib/checks/check_create
  --@include lib/meta/create_queue
end
--@include lib/meta/use
--@include lib/read/schedule_entry (gives: read_entry, write_entry)
local last_run, last_tick, runs, skipped, is_paused, hashes = read_entry(name)
local what = not last_run and 1 or string.sub(hashes, 1, 16) == hash and 0
  or force ~= '1' and string.find(hashes, hash, 1, true) and 3 or 2
redis.call('ZCARD', ticks)
local wake_empty = redis.call('LLEN', wake) == 0
if what == 1 then
  last_run, last_tick, runs, skipped, is_paused, hashes = '-', '0', '0', '0', '0', ''
end
if what == 1 or what == 2 then
  use('schedules')
  local older = string.gsub(' ' .. hashes, ' ' .. hash, '')
  write_entry(name, last_run, last_tick, runs, skipped, is_paused, string.match(string.sub(hash .. older, 1, 152), '^(.-) ?$'), '\n' .. value)
  if is_paused == '0' then
    redis.call('ZADD', ticks, next, name)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if wake_empty then -- a worker looks at the schedules when a token brings no job
    redis.call('RPUSH', wake, '1')
  end
end
return {1, nonce, epoch, created, what}
