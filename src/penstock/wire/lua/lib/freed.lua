-- Behind a removal: dedup ids are released, the time is noted, and whoever waits for a job or for room is told.
--- NEEDS  ready active scheduled expiry meta wake space dedup windows changes hungry bequeath heir_asleep heirs known
---        loose now open paused touched untold
--@include lib/bequests
--@include lib/heir
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
--@include lib/drained
if hungry then
  redis.call('RPUSH', space, '1')
end
