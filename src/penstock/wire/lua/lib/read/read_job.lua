-- read_job(id) returns a held job: its record, its size with a large body, its counters (nil = first delivery), and its value in held.
-- nil = it has no record, or its body is gone.
--- KEYS   held tally
--- NEEDS  uses record_size
--- GIVES  read_job
local function read_job(id)
  local value = redis.call('HGET', held, id)
  local record = value
  if value and string.byte(value) == 64 then
    record = string.sub(value, (string.find(value, '\n', 1, true) or 0) + 1)
  end
  local size = record and record_size(id, record)
  return size and record, size, uses_any('counters') and redis.call('HGET', tally, id) or nil, value
end
