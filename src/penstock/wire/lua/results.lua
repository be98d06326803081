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
--@include lib/read/result_of
local reply, bytes, marks = {1, nonce, ''}, 0, {}
for i = 1, #numbers do
  if bytes >= 1048576 then
    break
  end
  local job = result_of(numbers[i])
  if job[1] == 'waiting' then
    marks[#marks + 1] = string.format('%.0f', 4503599627370496 + now)
    marks[#marks + 1] = '?' .. numbers[i]
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
