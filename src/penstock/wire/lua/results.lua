--- Read the results of jobs by number. Nothing changes.
--- KEYS     ready held dead tally meta
--- ARGV     nonce wanted [number...]
---          number  1 to 100
--- META     v epoch seen off
--- RETURNS  {1, nonce, job...}            job: {} gone, else {state, at, attempt, duration, flags, value}; state: waiting =
---                                        not ended, dead, done, cancelled or expired; at: ms of the end, 0 = not ended;
---                                        duration: ms of the last run; flags: why the value is missing; value: JSON, or
---                                        the error of a dead letter. A reply has about 1 MiB, and at least one job:
---                                        name the missing last ones in another call
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--@include lib/check_version
--@include lib/check_epoch
--@include lib/now
--@include lib/check_numbers
--@include lib/read_kept
local reply, bytes = {1, nonce}, 0
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
    job = {'waiting', '0', '0', '0', '', ''}
  else
    job = read_kept(id) or job
  end
  reply[#reply + 1], bytes = job, bytes + (job[6] and #job[6] or 0)
end
return reply
