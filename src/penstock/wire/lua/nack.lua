--- Report a failed attempt: the job is tried again after a delay, or is dead when its attempts are used up.
--- KEYS     held active scheduled once dead tally expiry meta wake ready dedup windows
--- ARGV     nonce wanted common delay seed error [number...]
---          delay   ms until the next try; 0 = at once and before younger jobs; -1 = by the policy: the job's own, or the
---                  queue's
---          seed    0 to 2147483645, random: state of the generator (x * 16807 mod 2^31 - 1) that draws the jitter of the
---                  policy, one draw a job
---          error   text kept with the job, at most 1024 bytes; '' keeps the last one
---          wanted, common, number   as in ack; without a receipt only a delivered job can be named
--- META     v epoch uses seen off paused alarm max_attempts backoff_base backoff_cap
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 3 done and dead now, 0 gone, -1 stale receipt, -2 not active or at most
---                                        once, 2 ended before with this same receipt
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active  TO scheduled, dead
--@include lib/version
--@include lib/epoch
--@include lib/now
--@include lib/limit
max_attempts = limit(max_attempts, 20)
--@include lib/policy
--@include lib/settled
--@include lib/aside
--@include lib/listed
local values = {} -- of held, where some job has a policy of its own
if string.find(uses, 'p', 1, true) then
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
local back, fallen, recount, valid, draw = {}, {}, {}, 0, seed + 1
for i = 1, count do
  if codes[i] == 1 and where[i] == 'once' then
    codes[i] = -2
  elseif codes[i] == 1 then
    local id = ids[i]
    local d, nacked, c, r, why = string.match(counts[i] or '1 0 0 0', '^(%d+%+?) (%d+) (%d+) (%d+)(.*)$')
    nacked, valid = nacked + 1, valid + 1
    why = error == '' and why or ' ' .. string.sub(error, 1, 1024)
    if not receipts[i] then
      d = aside(d)
    end
    local most, from, top = max_attempts, backoff_base, backoff_cap
    if values[id] then
      local at = string.byte(values[id]) == 64 and (string.find(values[id], '\n', 1, true) or 0) + 1 or 1
      local attempts, own_base, own_cap = policy(values[id], at)
      most, from, top = limit(attempts, max_attempts), own_base or backoff_base, own_cap or backoff_cap
    end
    if nacked + c >= most then
      codes[i] = 3
      fallen[#fallen + 1] = id
    else
      local later = tonumber(delay)
      if later < 0 then
        draw = draw * 16807 % 2147483647
        local longest = math.min(top, from * 2 ^ math.min(nacked - 1, 42))
        later = math.max(1, math.floor(draw / 2147483647 * longest))
      end
      back[#back + 1] = id
      back[#back + 1] = later == 0 and math.min(now, tonumber(string.sub(id, 1, -12))) or now + later
    end
    recount[#recount + 1] = id
    recount[#recount + 1] = d .. ' ' .. nacked .. ' ' .. c .. ' ' .. r .. why
  end
end
--@include lib/placing
--@include lib/putback
if valid > 0 then
  redis.call('HINCRBY', meta, 'nacked', valid)
end
if #fallen == 0 and valid == count then
  return {1, nonce, valid}
end
return {1, nonce, valid, unpack(codes)}
