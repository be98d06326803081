-- Read all fields of meta but the notes of producers, of which there may be many.
--- KEYS   meta
--- GIVES  all_fields
local function all_fields()
  local names = {'v', 'epoch', 'uses', 'made', 'last', 'seen', 'off', 'alarm', 'full', 'surveyed', 'walked', 'recheck', 'closed', 'paused', 'producer',
    'consumer', 'lease', 'max_length', 'max_attempts', 'max_crashes', 'max_releases', 'max_snoozes', 'backoff_base',
    'backoff_cap', 'unknown_age', 'dead_max', 'dead_age', 'replicas', 'results_max', 'results_bytes', 'result_size', 'result_ttl', 'rate', 'burst', 'tat',
    'per_key', 'ordered', 'share', 'key_rate', 'key_burst', 'max_active', 'history', 'longest_wait', 'held_until', 'configured', 'unscheduled', 'enqueued', 'delivered', 'acked', 'nacked', 'released', 'crashed', 'promoted', 'dequeued', 'died',
    'redriven', 'trimmed', 'expired', 'expired_active', 'deleted', 'cancelled', 'withdrawn', 'purged', 'evicted', 'dangling', 'kept', 'kept_bytes'}
  local values, found = redis.call('HMGET', meta, unpack(names)), {}
  for i = 1, #names do
    if values[i] then
      found[#found + 1], found[#found + 2] = names[i], values[i]
    end
  end
  return found
end
