-- Lease and ttl that a record asks for; nil leaves them to the queue (protocol/core.md, Record).
--- GIVES  terms span_of
local function terms(record)
  local first = string.byte(record, 3)
  if first == 108 then
    return tonumber(string.match(record, '^[1+];l=(%d+)')), tonumber(string.match(record, '^[1+];l=%d+;t=(%d+)'))
  elseif first == 116 then
    return nil, tonumber(string.match(record, '^[1+];t=(%d+)'))
  end
end
-- How long a delivery lasts: the job's own lease; else the queue's, of a job with a ttl at most a tenth of it, but 1 s. So a
-- job whose consumer dies is delivered again before its ttl ends.
local function span_of(own, ttl, usual)
  return own or ttl and math.min(usual, math.max(1000, math.floor(ttl / 10))) or usual
end
