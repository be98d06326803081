-- Look at some of the producers in meta, and remove those that have made no call for 10 minutes. A new producer calls
-- this, so meta keeps few of them: a third more than have called since. Their notes end with the time of the call.
--- KEYS   meta
--- NEEDS  raw sampled
local notes = redis.call('HRANDFIELD', meta, sampled, 'WITHVALUES')
for i = 1, #notes, 2 do
  local called = string.byte(notes[i]) == 64 and string.match(notes[i + 1], '^%d+ %S* %d+ %x+ %d (%d+)')
  local age = called and raw - called
  if age and (age > 600000 or age < -2592000000) then -- 30 days later than now: a wrong time
    redis.call('HDEL', meta, notes[i])
  end
end
