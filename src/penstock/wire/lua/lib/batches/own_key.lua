-- own_key(id, list) returns the first key of these records, in hex, that is that of job id, or of a job up to 100 calls above it: on an ordered
-- queue jobs which that one waits for, itself or by a batch, would wait for it. nil = there is none, or the queue is not ordered.
--- KEYS   held members
--- NEEDS  keyed uses
--- GIVES  own_key
local function own_key(id, list)
  local keys, has_keys = {}, false
  for i = 1, keyed and keyed.is_ordered and #list or 0 do
    local key = string.match(string.match(list[i], '^[^\n]*'), ';q=(%x+)')
    if key then
      keys[key], has_keys = true, true
    end
  end
  for _ = 1, has_keys and 200 or 0 do -- a batch may be in between
    local value = redis.call('HGET', held, id) or ''
    local key = string.match(string.match(value, '^@[^\n]*\n([^\n]*)') or value, '^[^\n]*;q=(%x+)')
    if keys[key or ''] then
      return key
    end
    id = uses_any('batches') and string.match(redis.call('HGET', members, id) or '', '^[n!]?([^:]+)')
    if not id then
      return nil
    end
  end
end
