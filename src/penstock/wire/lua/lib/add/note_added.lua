-- Note in meta the last number, the count, and the producer's note, which is in `changes`; the jobs join a batch.
--- KEYS   scheduled tally expiry members batches meta
--- NEEDS  n batch before change changes enqueued final ids now raw uses
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
