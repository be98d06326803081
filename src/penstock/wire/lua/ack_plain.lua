--- Acknowledge first deliveries, in fewer steps than ack, or refuse (-20).
--- KEYS     held active tally meta
--- ARGV     nonce wanted common window [number...]
---          as in ack; common is the receipt of all the jobs, without results, and window is ''
--- META     v epoch uses seen off acked=acked_before
--- RETURNS  {1, nonce, acked}             all of them
---          {-6, nonce, version}          written by a newer protocol
---          {-20, nonce}                  not for this script: call ack; nothing done
--@include lib/checks/check_version
--@include lib/meta/server_time (gives: now_ms, since)
if epoch ~= wanted or off > 0 or since < 0 or window ~= '' or uses_any('large_bodies closed dedup batches results tickets ttls awaited') then
  return {-20, nonce}
end
--@include lib/meta/scores
local ids, count = numbers, #numbers
--@include lib/checks/check_first_deliveries (gives: all_valid)
if not all_valid then
  return {-20, nonce}
end
--@include lib/finish/finish_first_deliveries (gives: removed)
if since < 1000 then
  redis.call('HSET', meta, 'acked', acked_before + removed)
else
  redis.call('HSET', meta, 'acked', acked_before + removed, 'seen', now_ms)
end
return {1, nonce, count}
