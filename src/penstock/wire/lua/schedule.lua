--- Create a schedule, or give it another value. Its jobs are added by `tick`.
--- KEYS     @queue
--- ARGV     nonce create name next hash force value app
---          create  as in enqueue: a queue may have schedules before its first job
---          name    the schedule: 1 to 200 bytes, printable
---          next    time of its first tick, ms
---          hash    hash of the value: 16 hex digits
---          force   1 = also a value that was replaced before
---          value   its spec, a line feed, and the record of its jobs
---          app     the app of a worker that declares it: 1 to 600 bytes without blanks; '' or left out = no worker declares it
--- BOUNDS   next 0 9007199254740991
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, epoch, created, what}  what: 0 = it has this value already; 1 = it is new; 2 = it had another one, or was
---                                        orphaned; 3 = this value is one of the last 8 that were replaced: nothing changed
---          {-5, nonce}                   no such queue: register it, then create
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument: next, hash, create or app
--@include lib/checks/check_version
if #hash ~= 16 or string.find(hash, '[^%da-f]') then
  return {-19, nonce, 'hash', string.sub(hash, 1, 200)}
elseif #(app or '') > 600 or string.find(app or '', '%s') then
  return {-19, nonce, 'app', string.sub(app, 1, 200)}
end
--@include lib/meta/now (gives: changes, raw)
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
local last_run, last_tick, runs, skipped, is_paused, hashes, rest = read_entry(name)
local is_orphaned = last_run and #is_paused > 1 -- its code is back, whatever its value was
local what = not last_run and 1 or is_orphaned and 2 or string.sub(hashes, 1, 16) == hash and 0
  or force ~= '1' and string.find(hashes, hash, 1, true) and 3 or 2
local declaration = (app or '') ~= '' and string.format(' @%.0f ', raw) .. app or ''
redis.call('ZCARD', ticks)
local wake_empty = redis.call('LLEN', wake) == 0
if what == 1 then
  last_run, last_tick, runs, skipped, is_paused, hashes = '-', '0', '0', '0', '0', ''
elseif is_orphaned then
  next, is_paused = math.min(next, is_paused), '0'
elseif what == 0 and declaration ~= '' then
  redis.call('HDEL', held, '-')
  write_entry(name, last_run, last_tick, runs, skipped, is_paused, hashes, declaration .. string.match(rest, '\n.*$'))
end
if what == 1 or what == 2 then
  use('schedules')
  local older = string.gsub(' ' .. hashes, ' ' .. hash, '')
  write_entry(name, last_run, last_tick, runs, skipped, is_paused, string.match(string.sub(hash .. older, 1, 152), '^(.-) ?$'), declaration .. '\n' .. value)
  if is_paused == '0' then
    redis.call('ZADD', ticks, string.format('%.0f', next), name)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if wake_empty then -- a worker looks at the schedules when a token brings no job
    redis.call('RPUSH', wake, '1')
  end
end
return {1, nonce, epoch, created, what}
