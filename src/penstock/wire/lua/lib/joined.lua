-- Records as they were added, whose bodies may lie apart (protocol/core.md, Large bodies). nil = the body is gone.
--- NEEDS  held
--- GIVES  size_of joined
local function size_of(id, record)
  if string.byte(record) ~= 43 then
    return #record
  end
  local size = redis.call('HSTRLEN', held, '=' .. id)
  return size > 0 and #record + size or nil
end
local function joined(id, record)
  if string.byte(record) ~= 43 then
    return record
  end
  local body = redis.call('HGET', held, '=' .. id)
  return body and '1' .. string.sub(record, 2) .. body
end
