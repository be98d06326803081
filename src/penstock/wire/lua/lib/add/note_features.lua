-- Write the ends of ttl of the added jobs, and note in meta their features, which check_records has found; a new queue gets its first fields.
--- KEYS   expiry
--- NEEDS  uses change created epoch features now result_ttl is_read
--- SETS   uses
if created == 1 then
  --@include lib/meta/create_queue
end
--@include lib/meta/use
if features.ttl_ends then
  redis.call('ZADD', expiry, unpack(features.ttl_ends))
  use('ttls')
end
if #features.bodies > 0 then
  use('large_bodies')
end
if features.has_policies then
  use('policies')
end
if features.priorities then
  use('priorities')
end
if features.has_results or result_ttl or is_read then
  use('results')
end
