-- complete_removal() follows a removal of jobs: it releases dedup ids, notes the time, and wakes consumers and
-- producers.
--- KEYS   meta space
--- NEEDS  write_ends_and_wake changes wake_after_ends wants_room
--- GIVES  complete_removal
local function complete_removal()
  write_ends_and_wake()
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  wake_after_ends()
  if wants_room then
    redis.call('RPUSH', space, '1')
  end
end
