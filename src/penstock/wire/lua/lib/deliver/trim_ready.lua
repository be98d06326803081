-- trim_ready(cut) removes the jobs up to this number from ready.
--- KEYS   ready
--- GIVES  trim_ready
local function trim_ready(cut)
  redis.call('XTRIM', ready, 'MINID', string.sub(cut, 1, -11) .. string.format('%.0f', string.sub(cut, -10) + 1))
end
