-- What an enqueue notes of its jobs beside the jobs themselves: ends of ttl, the queue if it is new, number and count.
--- NEEDS  expiry meta lives bodies ruled created n change final enqueued changes epoch now uses
--- SETS   uses
--@include lib/use
if lives then
  redis.call('ZADD', expiry, unpack(lives))
  use('t')
end
if #bodies > 0 then
  use('b')
end
if ruled then
  use('p')
end
if created == 1 then
  --@include lib/create_queue
end
if n > 0 then
  change('last', final)
  change('enqueued', enqueued + n)
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
