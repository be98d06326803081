--- Add one plain job to ready, in fewer steps than enqueue. It is not for every job, and not for every queue (-20).
--- KEYS     ready meta wake
--- ARGV     nonce producer record
---          nonce, producer   as in enqueue
---          record  at most 4096 bytes; without ttl and policy, and not delivered at most once
--- META     v epoch last seen off uses enqueued @producer=before
--- RETURNS  {1, nonce, first, epoch}                          added: its number, or that of the first time
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-19, nonce, name, value}                         malformed argument: producer
---          {-20, nonce}                                      not for this script: call enqueue; nothing added
--@include lib/check_version
local time = redis.call('TIME')
--@include lib/check_repeat (gives: from, of)
if from then
  return {1, nonce, from, of}
end
local version, _, field = string.byte(record, 1, 3)
local now_ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
local since = now_ms - seen
local keeps = string.find(uses, 'k', 1, true)
-- a record with a ttl or policy, or the first one whose result is kept; a queue that is not there, is closed, or has large bodies, limits, jobs that expire or
-- a role, or a clock of its own
if version ~= 49 or field == 116 or field == 112 or field == 107 and not keeps or #record > 4096 or not epoch or string.find(uses, '[bcloxt]')
  or off > 0 or since < 0 then
  return {-20, nonce}
end
if field == 108 then
  local lease = tonumber(string.match(record, keeps and '^1;l=([1-9]%d*);[^tp]' or '^1;l=([1-9]%d*);[^tpk]'))
  if not lease or lease > 2073600000 or now_ms + lease > 3934712855551 then
    return {-20, nonce}
  end
end
local n, wake_empty = 1, redis.call('LLEN', wake) == 0
--@include lib/next_number (gives: ms_digits, seq)
local first = ms_digits .. '-' .. seq
redis.call('XADD', ready, first, 'j', record)
redis.call('HSET', meta, 'last', first, 'enqueued', enqueued + 1, '@' .. producer, nonce .. ' ' .. first .. ' 1 ' .. epoch .. ' 0 ' .. now_ms)
if since >= 1000 then
  redis.call('HSET', meta, 'seen', now_ms)
end
if not before then
  local raw, sampled = now_ms, 8
  --@include lib/drop_producers
end
if wake_empty then
  redis.call('RPUSH', wake, '1')
end
return {1, nonce, first, epoch}
