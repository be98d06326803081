-- count_freed(delivery, expired, done) returns how many slots of max_active become free in this call, before jobs that wait are chosen: those of
-- deliveries that end by it (`done`, perhaps named twice), of jobs that have expired, and of ended leases that lead to no delivery.
--- KEYS   active once
--- NEEDS  now score_of
--- GIVES  count_freed
local function count_freed(delivery, expired, done)
  local ended, freed, named, over = delivery.ended, #delivery.dropped, {}, score_of(now, 4095)
  if ended then
    freed = freed + #ended.dying / 2 + #ended.cancelled + #ended.to_park / 2
  end
  local function count_delivered(ids)
    local leases = #ids > 0 and redis.call('ZMSCORE', active, unpack(ids)) or {}
    local ends = #ids > 0 and redis.call('ZMSCORE', once, unpack(ids)) or {}
    for i = 1, #ids do
      if not named[ids[i]] and (leases[i] or ends[i] and tonumber(ends[i]) > over) then
        freed = freed + 1
      end
      named[ids[i]] = true
    end
  end
  count_delivered(done)
  count_delivered(expired.ids)
  return freed
end
