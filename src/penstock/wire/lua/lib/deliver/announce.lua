-- announce(at, again) notes an event that is due within 4 s, and returns whether to add the wake token for it: an idle
-- consumer would sleep past the event. `alarm` is the earliest event of which a consumer was told. No two consumers are
-- woken for one event, unless `again`: the consumer that was told is leaving the wait (protocol/core.md, Waking).
--- NEEDS  now alarm change
--- SETS   alarm
--- GIVES  announce
local function announce(at, again)
  if at - now <= 4000 and (again or alarm <= now or at < alarm) then
    alarm = at
    change('alarm', at)
    return true
  end
  return false
end
