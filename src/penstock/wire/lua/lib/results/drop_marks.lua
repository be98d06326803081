-- drop_marks(most) removes marks of clients that have not looked for 30 s, and `awaited` of `uses` when none is left. It
-- returns the number of marks.
--- KEYS   expiry meta
--- NEEDS  uses now awaited_from
--- SETS   uses
--- GIVES  drop_marks
local function drop_marks(most)
  local old = redis.call('ZRANGE', expiry, awaited_from, string.format('%.0f', awaited_from + now - 30000), 'BYSCORE', 'LIMIT', 0, most)
  if #old > 0 then
    redis.call('ZREM', expiry, unpack(old))
  end
  local count = redis.call('ZCOUNT', expiry, awaited_from, '+inf')
  if count == 0 then
    uses = string.gsub(uses, letters('awaited'), '')
    redis.call('HSET', meta, 'uses', uses)
  end
  return count
end
