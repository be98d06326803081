-- batch_of(id) returns the number of the callback of a job's batch, or `n` and the number of the job whose step has called it; '' = none.
--- KEYS   members
--- NEEDS  uses
--- GIVES  batch_of has_batches
local has_batches = uses_any('batches')
local function batch_of(id)
  return has_batches and string.match(redis.call('HGET', members, id) or '', '^!?([^:]*)') or ''
end
