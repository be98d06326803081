-- append_rows(ids, scores, counts) adds jobs to the reply, four parts each: number, score, counters and value, of
-- which `full` says how much. It stops when the reply has 1 MiB, and returns how many ids it has handled.
--- KEYS   held
--- NEEDS  reply full
--- GIVES  bytes at visible_part append_rows
local bytes, at = 0, #reply
--@include lib/read/join_body
local function visible_part(id, value) -- nil = its body is gone
  if full == '0' then
    return ''
  end
  local from = string.byte(value) == 64 and (string.find(value, '\n', 1, true) or 0) + 1 or 1
  if string.byte(value, from) ~= 43 then
    return full == '2' and value or string.sub(value, 1, string.find(value, '\n', from, true) or 0)
  end
  local record = full == '2' and join_body(id, string.sub(value, from)) or full == '1' and '1' .. string.sub(value, from + 1)
  return record and string.sub(value, 1, from - 1) .. record
end
local function append_row(id, score, count, value)
  local text = visible_part(id, value)
  if text then
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = id, score, count, text
    at, bytes = at + 4, bytes + math.max(#value, #text)
  end
end
local function append_rows(ids, scores, counts)
  local i = 0
  while i < #ids and bytes < 1048576 do
    local step = i == 0 and bytes == 0 and 1 or math.min(100, math.floor((1048576 - bytes) * i / (bytes + 1)) + 1)
    local values = redis.call('HMGET', held, unpack(ids, i + 1, math.min(i + step, #ids)))
    for j = 1, #values do
      if bytes >= 1048576 then
        return i
      end
      i = i + 1
      if values[j] then
        append_row(ids[i], scores[i], counts[i] or '', values[j])
      end
    end
  end
  return i
end
