-- screen(ids, expired) reads about candidates for delivery which have tickets, and, if not all expired jobs are listed, which have
-- expired: those are added to expired. It returns how many it has added.
--- KEYS   expiry
--- NEEDS  now keyed
--- GIVES  screen
local function screen(ids, expired)
  if keyed then
    keyed.read(ids)
  end
  local added, ends = 0, expired.has_more and #ids > 0 and redis.call('ZMSCORE', expiry, unpack(ids)) or {}
  for i = 1, #ends do
    local id = ids[i]
    if ends[i] and tonumber(ends[i]) <= now and not expired.left_out[id] then
      local at = #expired.ids + 1
      expired.left_out[id], expired.ids[at], expired.others[#expired.others + 1] = at, id, id
      added = added + 1
    end
  end
  return added
end
