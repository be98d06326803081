-- announce(at, again) notes an event that is due within a tick (4 s), and returns whether to add the wake token for
-- it: an idle consumer would sleep past the event. `alarm` is the earliest time for which a consumer has been woken;
-- none is woken twice for one event. `again`: that consumer is leaving the wait (protocol/core.md, Waking).
--- NEEDS  now alarm change
--- SETS   alarm
--- GIVES  announce
local function announce(at, anew)
  if at - now <= 4000 and (anew or alarm <= now or at < alarm) then
    alarm = at
    change('alarm', at)
    return true
  end
  return false
end
