--- Report a failed attempt: the job is tried again after a delay, or becomes a dead letter after its last attempt.
--- KEYS     held active scheduled urgent once dead tally expiry finished members batches meta wake ready dedup windows parked tickets
--- ARGV     nonce wanted common delay seed error trace [number...]
---          delay   ms until the next try; 0 = at once and before younger jobs; -1 = by the policy: the job's own, or the
---                  queue's
---          seed    0 to 2147483645, random: state of the generator (x * 16807 mod 2^31 - 1) that draws the jitter of
---                  the policy, once per job
---          error   text kept with the job, at most 1024 bytes; '' keeps the last one
---          trace   the end of the traceback, at most 8192 bytes, kept as the job's last one; '' keeps the last one
---          wanted, common, number   as in ack; a call by id can name only delivered jobs
--- BOUNDS   delay -1 3162240000000  seed 0 2147483645
--- META     v epoch uses seen off paused alarm max_attempts backoff_base backoff_cap
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 3 done and dead now, 0 gone, -1 stale receipt, -2 not active or at most
---                                        once, 2 ended before with this same receipt, 4 cancelled: removed
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active  TO scheduled, dead, none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/meta/limit_of
max_attempts = limit_of(max_attempts, 20)
--@include lib/deliver/policy
--@include lib/checks/check_receipts (gives: count, ids, codes, where)
--@include lib/return/describe_failure
--@include lib/checks/code_each
--@include lib/return/return_jobs
local values, has_policies, describes = {}, uses_any('policies'), error ~= '' or trace ~= '' -- values: of held
if describes or has_policies then
  local asked = {}
  for i = 1, count do
    if codes[i] == 1 and where[i] == 'active' then
      asked[#asked + 1] = ids[i]
    end
  end
  local found = #asked > 0 and redis.call('HMGET', held, unpack(asked)) or {}
  for i = 1, #asked do
    values[asked[i]] = found[i]
  end
end
local draw = seed + 1
local function decide(id, nacked, crashed, released, why)
  nacked = nacked + 1
  local counters = nacked .. ' ' .. crashed .. ' ' .. released .. (error == '' and why or ' ' .. string.sub(error, 1, 1024))
  local letter, failure = nil, nil
  if describes and values[id] then
    letter, failure = 'e', describe_failure(id, values[id], error, trace)
  end
  local most, base, cap = max_attempts, backoff_base, backoff_cap
  if has_policies and values[id] then
    local at = string.byte(values[id]) == 64 and (string.find(values[id], '\n', 1, true) or 0) + 1 or 1
    local attempts, own_base, own_cap = policy(values[id], at)
    most, base, cap = limit_of(attempts, max_attempts), own_base or backoff_base, own_cap or backoff_cap
  end
  if nacked + crashed >= most then
    return nil, counters, letter, failure
  end
  local delay_ms = tonumber(delay)
  if delay_ms < 0 then
    draw = draw * 16807 % 2147483647
    local longest = math.min(cap, base * 2 ^ math.min(nacked - 1, 42))
    delay_ms = math.max(1, math.floor(draw / 2147483647 * longest))
  end
  return delay_ms == 0 and math.min(now, tonumber(string.sub(id, 1, -12))) or now + delay_ms, counters, letter, failure
end
local reply = return_jobs(decide, 'nacked')
return reply
