-- keep_results(ids, state, given) keeps the results of jobs that end in this call, before they are removed. given = {ids,
-- values, spans}: those that came with the call, as check_results has them; nil = only the states are kept, of jobs
-- whose record has a field `k` above 0. The results are written first: a full server refuses that, and keeps the states then. Members
-- of batches that keep values leave theirs to the callback, with `k` = 1 to nobody else.
--- KEYS   ready held tally expiry members meta
--- NEEDS  uses now nothing
--- GIVES  keep_results
local keep_results = nothing
if uses_any('results') then
  --@include lib/results/drop_results (gives: result_bounds)
  --@include lib/results/states_to_keep
  --@include lib/results/result_blocks
  local function without_values(values)
    for i = 1, #values do
      local front, first = string.match(values[i], '^(%d* %d* )([^!])')
      values[i] = first and front .. '!full' or values[i]
    end
  end
  local function kept_longer(given) -- the results of more than 1 ms
    local ids, values, spans, n = {}, {}, {}, 0
    for i = 1, #given.ids do
      local span = given.spans[i] or given.spans[1]
      if span + 0 > 1 then
        n = n + 1
        ids[n], values[n], spans[n] = given.ids[i], given.values[i], span
      end
    end
    return {ids = ids, values = values, spans = spans}
  end
  keep_results = function(ids, state, given)
    if #ids == 0 then
      return
    end
    local keeps_values, bounds, is_full = uses_any('notes') and uses_any('batches'), nil, nil
    if keeps_values then
      bounds = result_bounds()
      --@include lib/batches/keep_values
      is_full = keep_values(ids, state, given, tonumber(bounds[5]) or 65536)
    end
    given = given or states_to_keep(ids)
    if keeps_values then
      given = kept_longer(given)
    end
    if #given.ids > 0 then
      bounds = bounds or result_bounds()
      local blocks, ends, replaced, bytes = result_blocks(given, state, tonumber(bounds[5]) or 65536)
      if is_full or not tonumber(redis.pcall('HSET', held, unpack(blocks))) then -- OOM; no later write tells
        without_values(given.values)
        blocks, ends, replaced, bytes = result_blocks(given, state, math.huge)
        redis.call('HDEL', held, '-')
        redis.call('HSET', held, unpack(blocks))
      end
      if #replaced > 0 then
        redis.call('ZREM', expiry, unpack(replaced))
      end
      redis.call('ZADD', expiry, unpack(ends))
      drop_results(100 + 2 * #ids, #given.ids, bytes, bounds)
    end
  end
end
