--- Take up to n jobs that wait in ready, in fewer steps than reserve, or refuse (-20).
--- KEYS     ready held active scheduled meta wake
--- ARGV     nonce n tag owner idle role asked
---          as in reserve; there is no role
--- BOUNDS   n -1000 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full lease delivered
--- RETURNS  {1, nonce, next, epoch, lease, now, jobs: (number, record)...}  as in reserve; all are first deliveries
---          {-6, nonce, version}          written by a newer protocol
---          {-20, nonce}                  not for this script: call reserve; nothing taken
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/meta/server_time
--@include lib/checks/check_plain
--@include lib/checks/is_lease
if (asked or '') ~= '' and not is_lease(asked, 1) then
  return {-20, nonce}
end
lease = asked and tonumber(asked) or lease
--@include lib/meta/changes (gives: change)
--@include lib/meta/scores
--@include lib/deliver/choose_ready (gives: reply, took)
local wake_empty, wrote, reread = redis.call('LLEN', wake) == 0, took > 0, false
idle = idle == '1'
if took > 0 then
  redis.call('HDEL', held, '-')
  --@include lib/deliver/deliver_ready
  change('delivered', delivered + took)
end
--@include lib/deliver/next_ready (gives: next_in)
reply[3] = next_in
return reply
