-- Behind a removal: dedup ids are released, the time is noted, and whoever waits for a job or for room is told.
--- NEEDS  meta space write_dedup_and_wake changes wake_drained hungry
write_dedup_and_wake()
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
wake_drained()
if hungry then
  redis.call('RPUSH', space, '1')
end
