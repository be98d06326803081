-- is_watched(ids) returns for each job if a client watches it: its mark in expiry is not older than 15 s (protocol/watching.md).
--- KEYS   expiry
--- NEEDS  now uses
--- GIVES  is_watched
local function is_watched(ids)
  local names, watched = {}, {}
  if uses_any('awaited') and #ids > 0 then
    for i = 1, #ids do
      names[i] = '!' .. ids[i]
    end
    local scores = redis.call('ZMSCORE', expiry, unpack(names))
    for i = 1, #ids do
      watched[i] = scores[i] and tonumber(scores[i]) >= 4503599627370496 + now - 15000
    end
  end
  return watched
end
