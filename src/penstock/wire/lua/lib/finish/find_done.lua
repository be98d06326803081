-- find_done(checked) chooses the jobs that an ack ends, from the result of check_receipts: each delivery that may be ended, and by id
-- also waiting jobs (ACKJOB of Disque), whose codes become 1. It returns their numbers, and how many of them were waiting.
--- KEYS   ready scheduled once tally expiry parked
--- NEEDS  uses
--- GIVES  find_done
local function find_done(checked)
  local ids, codes = checked.ids, checked.codes
  if checked.all_valid then
    if uses ~= '' then
      redis.call('ZCARD', expiry) -- check its type before the first write
    end
    return ids, 0
  end
  local done, freed = {}, 0
  for i = 1, checked.count do
    if codes[i] == -2 then
      if redis.call('ZSCORE', scheduled, ids[i]) or redis.call('ZSCORE', parked, ids[i]) then
        codes[i], freed = 1, freed + 1
      elseif #redis.call('XRANGE', ready, ids[i], ids[i]) == 1 then
        codes[i], freed = 1, freed + 1
      end
    end
    if codes[i] == 1 then
      done[#done + 1] = ids[i]
    end
  end
  if #done > 0 then -- check types before the first write
    redis.call('ZCARD', once)
    redis.call('HLEN', tally)
    redis.call('ZCARD', expiry)
    redis.call('XLEN', ready)
    redis.call('ZCARD', scheduled)
    redis.call('ZCARD', parked)
  end
  return done, freed
end
