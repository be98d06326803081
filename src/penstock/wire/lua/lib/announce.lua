-- An event that falls due within a tick (4 s) adds the wake token, or an idle consumer would sleep past
-- it. Nobody is woken twice for the same: `alarm` is the earliest time a woken consumer has been told
-- of; `anew` says that the one who was told is leaving the wait (protocol/core.md, Waking).
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
