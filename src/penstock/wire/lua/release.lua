--- Give jobs back without counting a failure.
--- KEYS     held active scheduled once dead tally expiry meta wake ready dedup windows
--- ARGV     nonce wanted common delay [number...]
---          delay   ms until it may be delivered again; 0 = at once and before younger jobs: such releases are
---                  counted, and a job becomes a dead letter after the queue's max_releases, 1000
---          wanted, common, number   as in nack
--- META     v epoch uses seen off paused alarm max_releases
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     codes as in nack
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active  TO scheduled, dead
--@include lib/check_version
--@include lib/check_epoch
--@include lib/now
--@include lib/limit
local most, delay_ms = limit(max_releases, 1000), tonumber(delay)
--@include lib/check_receipts
--@include lib/return_jobs
local function decide(id, nacked, crashed, released, why)
  if delay_ms == 0 then
    released = released + 1
  end
  if tonumber(released) >= most then
    return nil, nacked .. ' ' .. crashed .. ' ' .. released .. ' released ' .. released .. ' times'
  end
  local due = delay_ms == 0 and math.min(now, tonumber(string.sub(id, 1, -12))) or now + delay_ms
  return due, nacked .. ' ' .. crashed .. ' ' .. released .. why
end
local reply = return_jobs(decide, 'released')
return reply
