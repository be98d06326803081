-- A body above 4096 bytes is kept apart, in held under `=<number>`, until the job ends. The record is then its
-- header, with `+` in place of the version (protocol/core.md, Large bodies). split_body(id, record, fields) returns
-- the record and adds the body to fields, for an HSET of held.
--- GIVES  has_header split_body
local function has_header(record) -- the header ends within its bound
  return #record <= 4096 or string.find(string.sub(record, 1, 16384), '\n', 1, true)
end
local function split_body(id, record, fields)
  local stop = #record > 4096 and string.find(record, '\n', 1, true)
  if stop and #record - stop > 4096 then
    fields[#fields + 1] = '=' .. id
    fields[#fields + 1] = string.sub(record, stop + 1)
    return '+' .. string.sub(record, 2, stop)
  end
  return record
end
