--- Give jobs back without counting a failure.
--- KEYS     @queue
--- ARGV     nonce wanted common delay [number...]
---          delay   ms until it may be delivered again; 0 = at once, by the turns of its key or before younger jobs; -1, -2 =
---                  before younger jobs, as it was not begun. 0 and -1 count: it is dead after the queue's max_releases,
---                  1000. Above 0 they are snoozes, counted apart: it is dead after max_snoozes, by default never
---          wanted, common, number   as in nack
--- BOUNDS   delay -2 3162240000000
--- META     v epoch uses seen off paused alarm max_releases max_snoozes
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     codes as in nack
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active  TO scheduled, dead, none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/meta/limit_of
local most, most_snoozes, delay_ms = limit_of(max_releases, 1000), limit_of(max_snoozes, math.huge), tonumber(delay)
local keeps_place = delay_ms < 0
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
--@include lib/checks/code_each
local has_receipt = code_each(checked, common, numbers)
--@include lib/return/return_jobs
local function decide(id, nacked, crashed, released, why)
  local before = nacked .. ' ' .. crashed .. ' '
  if delay_ms <= 0 then
    released = delay_ms == -2 and released or released + 1
    if delay_ms > -2 and released >= most then
      return nil, before .. released .. ' released ' .. released .. ' times'
    end
    return math.min(now, tonumber(string.sub(id, 1, -12))), before .. released .. why
  end
  local mark = uses_any('marks') and redis.call('HGET', tally, 's' .. id) or '0'
  local before_it, unknown = string.match(mark, '^(%d+)( ?%d*)')
  local snoozed = before_it + 1
  if snoozed >= most_snoozes then
    return nil, before .. released .. ' snoozed ' .. snoozed .. ' times', 's', snoozed .. unknown
  end
  return now + delay_ms, before .. released .. why, 's', snoozed .. unknown
end
local reply = return_jobs(checked, has_receipt, decide, keeps_place, delay_ms > -2 and 'released')
return reply
