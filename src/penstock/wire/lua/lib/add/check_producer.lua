-- Check if this producer may add jobs now, and find repeated calls.
--- KEYS   ready held meta space
--- NEEDS  nonce producer epoch replicas uses full create paused off role seen before
--- SETS   epoch
--- GIVES  seed raw now changes is_lease created change score_of end_of nothing
--@include lib/meta/now (gives: changes)
--@include lib/checks/is_lease
local seed
do -- few locals fit into a script
  --@include lib/add/check_repeat (gives: from, total, of, delay_before, others)
  if from then
    if epoch and #changes > 0 then
      redis.call('HSET', meta, unpack(changes))
    end
    local reply = {1, nonce, from, tonumber(total), of, 0, 1, tonumber(delay_before), replicas}
    for at, what, id, state, header in string.gmatch(others, '(%d+) (%-?%d) (%S*) (%a+) ([^\n]*)\n') do -- of claim
      local i = #reply
      reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = tonumber(at), tonumber(what), id, state
      reply[i + 5] = header
    end
    return reply
  end
end
--@include lib/add/check_adding
