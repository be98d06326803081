-- Behind a removal: dedup ids are released, the time is noted, and whoever waits for a job or for room is told.
--@include lib/bequests
--@include lib/heir
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
--@include lib/drained
if hungry then
  redis.call('RPUSH', space, '1')
end
