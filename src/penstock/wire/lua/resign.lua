--- Give an exclusive role back before its lease ends.
--- KEYS     @queue
--- ARGV     nonce kind token
---          kind, token   as in acquire
--- META     v seen off uses producer consumer
--- RETURNS  {1, nonce, given}             given: 1, or 0 if this taking had ended before
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument: kind
--@include lib/checks/check_version
--@include lib/checks/check_kind
--@include lib/meta/now (gives: changes, change)
local before, other = producer or '', consumer or ''
if kind == 'consumer' then
  before, other = other, before
end
local fence, ours, ends, span = string.match(before, '^(%d+)%-(%x+) (%d+) (%d+)')
--@include lib/checks/time_left
if ours ~= token then
  return {1, nonce, 0}
end
change(kind, fence)
if not string.find(other, ' ', 1, true) then -- the other role is free
  change('uses', (string.gsub(uses, letters('roles'), '')))
end
redis.call('HDEL', held, '-')
redis.call('HSET', meta, unpack(changes))
return {1, nonce, time_left(ends, span) > 0 and 1 or 0}
