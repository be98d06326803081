-- Lease and ttl that a record asks for; nil leaves them to the queue (PROTOCOL.md, Record).
local function terms(record)
  local first = string.byte(record, 3)
  if first == 108 then
    return tonumber(string.match(record, '^1;l=(%d+)')), tonumber(string.match(record, '^1;l=%d+;t=(%d+)'))
  elseif first == 116 then
    return nil, tonumber(string.match(record, '^1;t=(%d+)'))
  end
end
