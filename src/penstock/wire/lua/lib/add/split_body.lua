-- A body above 4096 bytes is kept apart, in held under `=<number>`, until the job ends. The record is then its
-- header, with `+` in place of the version (protocol/storage.md, Large bodies). split_body(id, record, fields) returns
-- the record and adds the body to fields, for an HSET of held. A record without `k` gets the queue's result_ttl.
--- KEYS   meta
--- NEEDS  uses
--- GIVES  has_header result_ttl split_body
local function has_header(record) -- the header ends within its bound
  return #record <= 4096 or string.find(string.sub(record, 1, 16384), '\n', 1, true)
end
local result_ttl = uses_any('limits') and redis.call('HGET', meta, 'result_ttl')
local split_body
do
  local function with_result_ttl(record)
    local front = string.match(record, '^1[;lt=%d]*p=[^;\n]*') or string.match(record, '^1[;lt=%d]*')
    local stop = string.byte(front, -1) == 59 and #front - 1 or #front
    if string.sub(record, stop + 1, stop + 3) == ';k=' then
      return record
    end
    return string.sub(record, 1, stop) .. ';k=' .. result_ttl .. string.sub(record, stop + 1)
  end
  split_body = function(id, record, fields)
    if result_ttl then
      record = with_result_ttl(record)
    end
    local stop = #record > 4096 and string.find(record, '\n', 1, true)
    if stop and #record - stop > 4096 then
      fields[#fields + 1] = '=' .. id
      fields[#fields + 1] = string.sub(record, stop + 1)
      return '+' .. string.sub(record, 2, stop)
    end
    return record
  end
end
