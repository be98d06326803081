-- Choose the jobs that an ack ends: each delivery that may be ended, and by id also waiting jobs (ACKJOB of
-- Disque). Gives done (their numbers), and freed (the number of waiting ones).
--- KEYS   ready scheduled once tally expiry parked
--- NEEDS  all_valid ids count codes uses
--- GIVES  done freed acked
local done, freed = all_valid and ids or {}, 0
if count > 0 and not all_valid then
  for i = 1, count do
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
end
-- check types before the first write
if not all_valid and #done > 0 then
  redis.call('ZCARD', once)
  redis.call('HLEN', tally)
  redis.call('ZCARD', expiry)
  redis.call('XLEN', ready)
  redis.call('ZCARD', scheduled)
  redis.call('ZCARD', parked)
elseif all_valid and uses ~= '' then
  redis.call('ZCARD', expiry)
end
local acked = #done
