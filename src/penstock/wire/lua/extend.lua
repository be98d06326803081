--- Extend leases, from now, at most to the end of the job's ttl. A provisional delivery becomes a usual one.
--- KEYS     @queue
--- ARGV     nonce wanted common lease late [number...]
---          lease   ms from now; 0 = the job's own lease, or the queue's
---          late    1 = also when more than half of the ttl has passed; 2 = so, and never to an earlier end; 3 = as 1, provisional; 4 = as 1, usual; else 0
---          wanted, common, number   as in ack; a call by id can name only delivered jobs
--- META     v epoch uses seen off alarm lease=queue_lease
--- RETURNS  {1, nonce, now, until...}     for each: the new deadline in ms, or a code: 0 gone, -1 stale receipt, -2 not
---                                        active or at most once, 2 ended before with this same receipt,
---                                        -11 more than half of its ttl has passed
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: lease or number
--- FROM active  TO active
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes, score_of, end_of)
--@include lib/checks/is_lease
if not is_lease(lease, 0) then
  return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
end
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local count, ids, codes, where, counts = checked.count, checked.ids, checked.codes, checked.where, checked.counts
local scores, common_score = checked.scores, checked.common_score
--@include lib/checks/code_each
code_each(checked, common, numbers)
--@include lib/deliver/lease_terms (gives: lease_and_ttl, lease_span)
local wake_empty = redis.call('LLEN', wake) == 0
local active_pairs, begun, nearest = {}, {}, nil
--@include lib/deliver/is_suspect
for i = 1, count do
  local id = ids[i]
  if codes[i] == 1 and (where[i] == 'once' or counts[i] and string.find(counts[i], '^%d+%+')) then
    codes[i] = -2 -- or a claim has ended the delivery
  elseif codes[i] == 1 then
    local span = tonumber(lease)
    if span == 0 then
      local value = redis.call('HGET', held, id) or ''
      local own, ttl = lease_and_ttl(string.match(value, '^@[^\n]*\n(.*)$') or value)
      span = lease_span(own, ttl, queue_lease)
    end
    local till = late == '2' and math.max(now + span, end_of(common_score or scores[i])) or now + span
    local ends = uses_any('ttls') and tonumber(redis.call('ZSCORE', expiry, id))
    till = ends and math.min(till, ends) or till
    if till <= now then
      codes[i] = 0
    elseif ends and late == '0' and (now - string.sub(id, 1, -12)) * 2 > ends - string.sub(id, 1, -12) then
      codes[i] = -11
    else
      active_pairs[#active_pairs + 1] = string.format('%.0f', score_of(till, (common_score or scores[i]) % 4096))
      active_pairs[#active_pairs + 1] = id
      codes[i] = till
      local value = (late == '3' or late == '4' or counts[i] and is_suspect(counts[i])) and redis.call('HGET', held, id)
      local noted = value and string.gsub(value, '^(@%d+)%??', late == '3' and '%1?' or '%1', 1)
      if noted ~= value then
        begun[#begun + 1] = id
        begun[#begun + 1] = noted
      end
      nearest = math.min(nearest or till, till)
    end
  end
end
if #active_pairs > 0 then
  redis.call('HDEL', held, '-')
  redis.call('ZADD', active, unpack(active_pairs))
  if #begun > 0 then
    redis.call('HSET', held, unpack(begun))
  end
  --@include lib/deliver/announce
  local token = announce(nearest, false)
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if token and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
end
return {1, nonce, now, unpack(codes)}
