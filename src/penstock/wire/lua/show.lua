--- Read jobs by number. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 100
--- META     v epoch seen off lease uses
--- RETURNS  {1, nonce, now, lease, epoch, job...}  job: {} gone, else {number, state, score, delivered, owner, counters, record,
---                                        cancelled, progress, snoozes, failures, receipt, batch, steps};
---                                        state: ready, scheduled, parked, active, once, dead, expired, or dangling = in no index,
---                                        or done, cancelled, expired: ended, and its result is kept, then receipt is 'kept', see results;
---                                        damaged; score: due time, end of lease, time of death, see keys for parked; delivered and owner: of
---                                        the last delivery; cancelled, progress, snoozes and failures: the marks of the
---                                        job; receipt: of a delivery that has not ended, of a parked job 'held', or the tickets of its key and the limit,
---                                        see keys; batch: number of the callback of its batch, or `n` and the
---                                        number of the job whose step has called it. '' = none. steps: only of a job with notes,
---                                        and if no other one is named: what it waits for and its steps, see steps.
---                                        A reply has about 1 MiB, and at least one job: name the missing last ones in another call
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/is_number
--@include lib/read/describe
--@include lib/read/list_steps
local reply = {1, nonce, now, lease, epoch or ''}
local bytes = 0
for i = 1, #numbers do
  local id = numbers[i]
  if bytes >= 1048576 then
    break
  end
  if not is_number(id) then
    return {-19, nonce, 'number', string.sub(id, 1, 200)}
  end
  local job = describe(id)
  local steps = #numbers == 1 and job[13] and list_steps(id) or ''
  if steps ~= '' then
    job[14] = steps
  end
  reply[#reply + 1], bytes = job, bytes + (job[7] and #job[7] or 0)
end
return reply
