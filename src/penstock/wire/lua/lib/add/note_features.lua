-- Write the ends of ttl of the added jobs, and note in meta what check_records has found of them; a new queue gets its first fields.
--- KEYS   expiry
--- NEEDS  uses bodies change created epoch has_policies has_results now priorities result_ttl ttl_ends
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
