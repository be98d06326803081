-- Find out if all named deliveries are first deliveries with the receipt `common`, so that all may be ended (all_valid).
-- common_score is the score of all of them if they are the jobs of one reserve: then one range was read instead of each
-- score. Also gives the receipt in parts: delivery_number, hex (its tag as text) and wanted_tag. The delivery number is in tally,
-- absent for a first delivery; the tag is the score modulo 4096 (protocol/core.md, Receipt).
--- KEYS   active tally
--- NEEDS  common ids count uses score_of
--- GIVES  delivery_number hex wanted_tag has_counters counts scores all_valid common_score
local delivery_number, hex, till = string.match(common, '^(%d+)-(%x%x%x)@?(%d*)$')
local wanted_tag = hex and tonumber(hex, 16)
local has_counters = uses_any('counters')
local counts, scores, all_valid, common_score = {}, {}, delivery_number == '1' and count > 0 and count <= 1000, nil
if all_valid and has_counters then -- a first delivery has no counters
  counts = redis.call('HMGET', tally, unpack(ids))
  for i = 1, count do
    all_valid = all_valid and not counts[i]
  end
end
if all_valid and till ~= '' and count > 4 then -- perhaps all jobs of one reserve
  common_score = string.format('%.0f', score_of(till, wanted_tag))
  local there = redis.call('ZRANGE', active, common_score, common_score, 'BYSCORE', 'LIMIT', 0, count + 1)
  for i = 1, math.max(count, #there) do
    if there[i] ~= ids[i] then
      common_score = nil
      break
    end
  end
end
if count > 0 and not common_score then
  scores = redis.call('ZMSCORE', active, unpack(ids))
  for i = 1, all_valid and count or 0 do
    local score = scores[i]
    if not score or score % 4096 ~= wanted_tag then
      all_valid = false
      break
    end
  end
end
