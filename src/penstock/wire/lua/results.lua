--- Read the results of jobs by number, and perhaps mark those that have not ended as awaited; nothing else changes.
--- KEYS     @queue
--- ARGV     nonce wanted await [number...]
---          await   1 = the caller waits: the entry in finished tells the end of a marked job (protocol/results.md); '' = only
---                  look, write nothing
---          number  1 to 100
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, last, job...}      last: id of the last entry of finished, '' = not asked; job: {} gone, else {state, at, attempt, duration, flags, value}; state: waiting =
---                                        not ended, dead, done, cancelled or expired, also if no script has removed the
---                                        job yet; at: ms of the end, 0 = not ended;
---                                        duration: ms of the last run; flags: why the value is missing; value: JSON, or
---                                        the error of a dead letter, or with the flag next the number of the job that follows. A reply has about 1 MiB, and at least one job:
---                                        name the missing last ones in another call
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/check_numbers
--@include lib/read/read_kept
--@include lib/read/lapsed (gives: abandoned_error)
local function attempt_of(id) -- as states_to_keep counts
  if string.byte(redis.call('HGET', held, id) or '') ~= 64 then
    return '0'
  end
  local nacks, crashes = string.match(redis.call('HGET', tally, id) or '', '^%S+ (%d+) (%d+)')
  return string.format('%d', 1 + (nacks or 0) + (crashes or 0))
end
local reply, bytes, marks = {1, nonce, ''}, 0, {}
for i = 1, #numbers do
  local id, job = numbers[i], {}
  if bytes >= 1048576 then
    break
  end
  local died = redis.call('ZSCORE', dead, id)
  if died then
    local nacks, crashes, why = string.match(redis.call('HGET', tally, id) or '', '^%S+ (%d+) (%d+) %d+ ?(.*)$')
    job = {'dead', died, string.format('%d', (nacks or 0) + (crashes or 0)), '0', '', why or ''}
  elseif redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1 then
    local state, ended = lapsed(id, redis.call('ZSCORE', once, id))
    if state == 'dead' then
      job = {state, string.format('%.0f', ended), '0', '0', '', abandoned_error}
    elseif state then
      job = {state, string.format('%.0f', ended), attempt_of(id), '0', '', ''}
    else
      job = {'waiting', '0', '0', '0', '', ''}
      marks[#marks + 1] = string.format('%.0f', 4503599627370496 + now)
      marks[#marks + 1] = '?' .. id
    end
  else
    job = read_kept(id) or job
  end
  reply[#reply + 1], bytes = job, bytes + (job[6] and #job[6] or 0)
end
if await == '1' then
  local entry = redis.call('XREVRANGE', finished, '+', '-', 'COUNT', 1)[1]
  reply[3] = entry and entry[1] or '0-0'
  if #marks > 0 then
    redis.call('ZCARD', expiry)
    --@include lib/meta/use
    redis.call('HDEL', held, '-')
    redis.call('ZADD', expiry, unpack(marks))
    use('awaited')
    if #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
  end
end
return reply
