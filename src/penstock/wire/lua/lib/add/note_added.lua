-- Write the ends of ttl, and in meta the epoch of a new queue, the letters of uses, the last number, the count and
-- the producer's note, which is in `changes`.
--- KEYS   scheduled expiry members batches meta
--- NEEDS  ttl_ends bodies has_policies priorities has_results result_ttl created n change final enqueued changes epoch now
---        uses before raw batch ids
--- SETS   uses
if created == 1 then
  --@include lib/meta/create_queue
end
--@include lib/meta/use
if ttl_ends then
  redis.call('ZADD', expiry, unpack(ttl_ends))
  use('ttls')
end
if #bodies > 0 then
  use('large_bodies')
end
if has_policies then
  use('policies')
end
if priorities then
  use('priorities')
end
if has_results or result_ttl then
  use('results')
end
if n > 0 then
  change('last', final)
  change('enqueued', enqueued + n)
end
redis.call('HSET', meta, unpack(changes))
if batch and n > 0 then
  --@include lib/batches/join_batch
  join_batch(ids, batch)
end
if not before then
  local sampled = 8
  --@include lib/sweep/drop_producers
end
