--- Acknowledge first deliveries and take up to n jobs that wait in ready, in fewer steps than settle, or refuse (-20).
--- KEYS     ready held active scheduled tally meta wake
--- ARGV     nonce wanted common n tag owner role [number...]
---          as in settle; common is the receipt of all the jobs, without results, and there is no role
--- BOUNDS   n -1000 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full lease delivered acked=acked_before
--- RETURNS  {1, nonce, next, epoch, lease, now, jobs: (number, record)...}  all of them; as in reserve_plain
---          {-6, nonce, version}          written by a newer protocol
---          {-20, nonce}                  not for this script: call settle; nothing done
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/meta/server_time
--@include lib/checks/check_plain (gives: now)
if epoch ~= wanted or uses_any('dedup batches results awaited') then
  return {-20, nonce}
end
local ids, count = numbers, #numbers
--@include lib/meta/scores (gives: end_of)
--@include lib/checks/check_first_deliveries (gives: all_valid)
if not all_valid then
  return {-20, nonce}
end
--@include lib/meta/changes (gives: change)
--@include lib/deliver/choose_ready (gives: head, reply, took)
local wake_empty, wrote, idle = redis.call('LLEN', wake) == 0, true, false
local reread = head[2] and end_of(head[2]) - now <= 4000 -- it may end in this call
--@include lib/finish/finish_first_deliveries (gives: removed)
change('acked', acked_before + removed)
if took > 0 then
  --@include lib/deliver/deliver_ready
  change('delivered', delivered + took)
end
--@include lib/deliver/next_ready (gives: next_in)
reply[3] = next_in
return reply
