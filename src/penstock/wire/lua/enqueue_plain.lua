--- Add plain jobs to ready, in fewer steps than enqueue, or refuse (-20).
--- KEYS     ready meta wake
--- ARGV     nonce producer [record...]
---          nonce, producer   as in enqueue
---          record  1 to 1000, each at most 4096 bytes; without ttl and policy, and not delivered at most once
--- BOUNDS   nonce 1 9007199254740991
--- META     v epoch last seen off uses enqueued @producer=before
--- RETURNS  {1, nonce, first, epoch}                          added: numbers first, first + 1, ..., or those of the first time
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-19, nonce, name, value}                         malformed argument: producer
---          {-20, nonce}                                      not for this script: call enqueue; nothing added
--@include lib/checks/check_version
--@include lib/meta/server_time (gives: now_ms, since)
local seed
--@include lib/add/check_repeat (gives: from, of)
if from then
  return {1, nonce, from, of}
end
local n, keeps = #records, uses_any('results')
if not epoch or off > 0 or since < 0 or n == 0 or n > 1000 or uses_any('large_bodies closed limits tickets once roles ttls') then
  return {-20, nonce}
end
local byte = string.byte
for i = 1, n do
  local record = records[i]
  local version, sign, field = byte(record, 1, 3)
  local lease = sign == 59 and field == 108 and tonumber(string.match(record, keeps and '^1;l=([1-9]%d*);[^tp]' or '^1;l=([1-9]%d*);[^tpk]'))
  -- a ttl or a policy, or the first job whose result is kept
  if version ~= 49 or #record > 4096 or sign == 59 and (field == 116 or field == 112 or field == 107 and not keeps or field == 108
    and not (lease and lease <= 2073600000 and now_ms + lease <= 3934712855551)) then
    return {-20, nonce}
  end
end
local call = redis.call
local wake_empty = call('LLEN', wake) == 0
--@include lib/add/next_number
--@include lib/add/number_list (gives: first, final, ids)
for i = 1, n do
  call('XADD', ready, ids[i], 'j', records[i])
end
call('HSET', meta, 'last', final, 'enqueued', enqueued + n, '@' .. producer, nonce .. ' ' .. first .. (n == 1 and ' 1 ' or ' ' .. n .. ' ') .. epoch .. ' 0 ' .. now_ms)
if since >= 1000 then
  call('HSET', meta, 'seen', now_ms)
end
if not before then
  local raw, sampled = now_ms, 8
  --@include lib/sweep/drop_producers
end
if wake_empty then
  call('RPUSH', wake, '1')
end
return {1, nonce, first, epoch}
