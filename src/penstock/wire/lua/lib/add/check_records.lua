-- check_records(list, record_index, ids, ms) checks new records, whose numbers are `ids`, of the time ms: version 1, and headers of at most
-- 16384 bytes. It returns the refusal of one (its place in the call is in record_index, if it is another one), or nil and the features
-- of the jobs: has_policies (some job has a policy of its own), priorities (those above 0 by place; nil = none), has_results (some
-- job's result is kept), ttl_ends (scores and members for expiry; nil = none), and bodies, an empty table for large bodies.
--- KEYS   held urgent expiry
--- NEEDS  nonce is_lease is_duration now has_header keyed
--- GIVES  check_records
local function check_records(list, record_index, ids, ms)
  local head, ttl, stop, ttl_ends, big, has_policies, has_results, living = nil, nil, nil, nil, false, false, false, 0
  for i = 1, #list do
    local record = list[i]
    local version, _, third, _, zero = string.byte(record, 1, 5)
    local own = third == 108 or third == 116
    if own and not (head and string.sub(record, 1, #head) == head) then -- mostly equal to the record before
      head = string.match(record, '^.[;lt=%d]*[^;lt=%d]') -- the fields l and t, and one character
      local lease = string.match(record, '^1;l=([^;\n]*)')
      if lease and not is_lease(lease, 0) then
        return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
      end
      ttl = string.match(record, '^1[;l=%d]*;t=([^;\n]*)')
      if ttl and not is_duration(ttl, 1) then
        return {-19, nonce, 'ttl', string.sub(ttl, 1, 200)}
      end
      stop = ttl and string.format('%.0f', (ms - now > 2592000000 and now or ms) + ttl)
      has_policies = has_policies or string.sub(head or '', -2) == ';p'
      has_results = has_results or string.sub(head or '', -2) == ';k'
    end
    -- at most once (l=0) needs a ttl: nothing else removes a job that is not acknowledged
    if version ~= 49 or third == 108 and zero == 48 and not ttl or not has_header(record) then
      return {-10, nonce, record_index[i] or i}
    end
    big, has_policies = big or #record > 4096, has_policies or third == 112
    has_results = has_results or third == 107 and zero ~= 48 or has_policies and string.find(record, '^1[;lt=%d]*;p=[^;\n]*;k=')
    if own and ttl then
      ttl_ends = ttl_ends or {}
      ttl_ends[living + 1], ttl_ends[living + 2], living = stop, ids[i], living + 2
    end
  end
  if ttl_ends then
    redis.call('ZCARD', expiry)
  end
  if big then
    redis.call('HLEN', held)
  end
  local features = {bodies = {}, ttl_ends = ttl_ends}
  if has_results then
    features.has_results = true
  end
  if has_policies then
    local priorities = nil
    --@include lib/add/priority_of
    for i = 1, #list do
      local priority = priority_of(list[i])
      if priority > 0 and keyed and keyed.is_ordered then -- jobs of a key would change places
        return {-19, nonce, 'priority', string.format('%d', priority)}
      elseif priority > 0 then
        priorities = priorities or {}
        priorities[i] = priority
      end
    end
    if priorities then
      redis.call('ZCARD', urgent) -- check its type before the first write
    end
    features.has_policies, features.priorities = true, priorities
  end
  return nil, features
end
