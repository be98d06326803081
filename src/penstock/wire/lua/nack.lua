--- Report a failed attempt: the job is tried again after a delay, or becomes a dead letter after its last attempt.
--- KEYS     @queue
--- ARGV     nonce wanted common delay seed error trace [number...]
---          delay   ms until the next try; 0 = at once, before younger jobs or by the turns of its key; -1 = by the job's
---                  policy or the queue's; -2 = no handler
---          seed    0 to 2147483645, random: state of the generator (x * 16807 mod 2^31 - 1) that draws the jitter of
---                  the policy, once per job
---          error   text kept with the job, at most 1024 bytes; '' keeps the last one
---          trace   the end of the traceback, at most 8192 bytes, kept as the job's last one; '' keeps the last one
---          wanted, common, number   as in ack; a call by id can name only delivered jobs
--- BOUNDS   delay -2 3162240000000  seed 0 2147483645
--- META     v epoch uses seen off paused alarm max_attempts backoff_base backoff_cap unknown_age
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
local is_unknown, unknown_limit = tonumber(delay) == -2, tonumber(unknown_age) or 86400000
--@include lib/deliver/policy
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local ids, codes, where = checked.ids, checked.codes, checked.where
--@include lib/return/describe_failure
--@include lib/checks/code_each
local has_receipt = code_each(checked, common, numbers)
--@include lib/return/return_jobs
local values, has_policies, describes = {}, uses_any('policies'), not is_unknown and (error ~= '' or trace ~= '') -- values: of held
if describes or has_policies then
  local asked = {}
  for i = 1, checked.count do
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
local function decide_unknown(id, counters, attempts)
  local mark = uses_any('marks') and redis.call('HGET', tally, 's' .. id) or '0'
  local snoozed, times, since, attempts_before = string.match(mark, '^(%d+) ?(%d*) ?(%d*) ?(%d*)$')
  since = tonumber(attempts_before) == attempts and tonumber(since) or now -- a consumer that knew it began anew
  local waited = now - since
  return waited < unknown_limit and now + math.min(math.max(waited, 1000), 60000) or nil, counters, 's',
    string.format('%s %d %.0f %d', snoozed, (tonumber(times) or 0) + 1, since, attempts)
end
local function decide(id, nacked, crashed, released, why)
  nacked = is_unknown and nacked + 0 or nacked + 1
  local counters = nacked .. ' ' .. crashed .. ' ' .. released .. (error == '' and why or ' ' .. string.sub(error, 1, 1024))
  if is_unknown then
    return decide_unknown(id, counters, nacked + crashed)
  end
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
if is_unknown then
  local reply = return_jobs(checked, has_receipt, decide, false, 'released')
  return reply
end
local reply = return_jobs(checked, has_receipt, decide, false, 'nacked')
return reply
