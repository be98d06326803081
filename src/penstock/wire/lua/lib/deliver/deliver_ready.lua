-- Deliver the jobs that choose_ready chose. The caller has written to held: an HDEL, which passes on a full server and checks its type.
-- held_pairs is {0, number, value, number, value, ...}: HSET takes it from the second place on. Then each place before a number is
-- overwritten by its score, which makes it {score, number, score, number, ...} for ZADD.
--- KEYS   ready held active
--- NEEDS  held_pairs took cut now lease tag score_of
local active_pairs, score = held_pairs, string.format('%.0f', score_of(now + lease, tag))
redis.call('HSET', held, unpack(held_pairs, 2))
for i = 1, took * 2, 2 do
  active_pairs[i] = score
end
active_pairs[took * 2 + 1] = nil
--@include lib/deliver/add_active
add_active(active_pairs)
--@include lib/read/number_after
redis.call('XTRIM', ready, 'MINID', number_after(cut))
