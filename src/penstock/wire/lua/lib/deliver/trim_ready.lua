-- Remove the jobs up to the number `cut` from ready.
--- NEEDS  ready cut
redis.call('XTRIM', ready, 'MINID', string.sub(cut, 1, -11) .. string.format('%.0f', string.sub(cut, -10) + 1))
