-- A body above 4096 bytes lies apart: in held under `=<number>`, where it stays until the job ends. What stands for the record is
-- its header, with `+` in place of the version (protocol/core.md, Large bodies). Adds the body to fields, for an HSET of held.
--- GIVES  headed apart
local function headed(record) -- its header ends, and not too late
  return #record <= 4096 or string.find(string.sub(record, 1, 16384), '\n', 1, true)
end
local function apart(id, record, fields)
  local stop = #record > 4096 and string.find(record, '\n', 1, true)
  if stop and #record - stop > 4096 then
    fields[#fields + 1] = '=' .. id
    fields[#fields + 1] = string.sub(record, stop + 1)
    return '+' .. string.sub(record, 2, stop)
  end
  return record
end
