-- lease_and_ttl(record) returns the lease and the ttl in the record; nil = not given (protocol/core.md, Record).
--- GIVES  lease_and_ttl lease_span
local function lease_and_ttl(record)
  local first = string.byte(record, 3)
  if first == 108 then
    return tonumber(string.match(record, '^[1+];l=(%d+)')), tonumber(string.match(record, '^[1+];l=%d+;t=(%d+)'))
  elseif first == 116 then
    return nil, tonumber(string.match(record, '^[1+];t=(%d+)'))
  end
end
-- lease_span(own, ttl, usual) returns the lease of a delivery: the job's own; else the queue's, but at most a tenth of the
-- job's ttl, and at least 1 s. So a job whose consumer dies is delivered again before its ttl ends.
local function lease_span(own, ttl, usual)
  return own or ttl and math.min(usual, math.max(1000, math.floor(ttl / 10))) or usual
end
