-- join_body(id, record) returns the record as it was added, with a large body; nil = its body is gone.
--- KEYS   held
--- GIVES  record_size join_body
local function record_size(id, record)
  if string.byte(record) ~= 43 then
    return #record
  end
  local size = redis.call('HSTRLEN', held, '=' .. id)
  return size > 0 and #record + size or nil
end
local function join_body(id, record)
  if string.byte(record) ~= 43 then
    return record
  end
  local body = redis.call('HGET', held, '=' .. id)
  return body and '1' .. string.sub(record, 2) .. body
end
