-- complete_removal() comes behind a removal: dedup ids are released, the time is noted, consumers and producers that wait
-- are woken.
--- NEEDS  meta space write_dedup_and_wake changes wake_drained hungry
--- GIVES  complete_removal
local function complete_removal()
  write_dedup_and_wake()
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  wake_drained()
  if hungry then
    redis.call('RPUSH', space, '1')
  end
end
