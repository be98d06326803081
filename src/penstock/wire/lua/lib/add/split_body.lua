-- A body above 4096 bytes is kept apart, in held under `=<number>`, until the job ends. The record is then its
-- header, with `+` in place of the version (protocol/storage.md, Large bodies). split_body(id, record, fields) returns
-- the record and adds the body to fields, for an HSET of held. A record without `k` gets the queue's result_ttl. With is_read a batch
-- keeps the value, so `k` is at least 1: the consumer sends it with the ack then.
--- KEYS   meta
--- NEEDS  uses
--- GIVES  has_header result_ttl is_read split_body
local function has_header(record) -- the header ends within its bound
  return #record <= 4096 or string.find(string.sub(record, 1, 16384), '\n', 1, true)
end
local result_ttl = uses_any('limits') and redis.call('HGET', meta, 'result_ttl')
local is_read, split_body = false, nil
do
  local function with_result_ttl(record)
    local front = string.match(record, '^1[;lt=%d]*p=[^;\n]*') or string.match(record, '^1[;lt=%d]*')
    local stop = string.byte(front, -1) == 59 and #front - 1 or #front
    if string.sub(record, stop + 1, stop + 3) ~= ';k=' then
      return string.sub(record, 1, stop) .. ';k=' .. (result_ttl or '1') .. string.sub(record, stop + 1)
    end
    local behind = is_read and string.match(record, '^;k=0+()[;\n]', stop + 1)
    return behind and string.sub(record, 1, stop) .. ';k=1' .. string.sub(record, behind) or record
  end
  split_body = function(id, record, fields)
    if result_ttl or is_read then
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
