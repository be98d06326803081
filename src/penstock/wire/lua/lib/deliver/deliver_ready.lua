-- Deliver the jobs that choose_ready chose. An earlier write passes on a full server, and checks the type of held.
--- KEYS   ready held active
--- NEEDS  held_pairs took cut now lease tag score_of
local active_pairs, score = held_pairs, string.format('%.0f', score_of(now + lease, tag)) -- a malformed tag ends the call here
redis.call('HSET', held, unpack(held_pairs, 2))
for i = 1, took * 2, 2 do
  active_pairs[i] = score
end
active_pairs[took * 2 + 1] = nil
--@include lib/deliver/add_active
add_active(active_pairs)
redis.call('XTRIM', ready, 'MINID', string.sub(cut, 1, -11) .. string.format('%.0f', string.sub(cut, -10) + 1))
