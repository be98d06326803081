-- Find out if this call is a repeat: then it gets its first answer, from the producer's key (`from` and what follows),
-- even if the queue has been removed since. It also writes, so that a WAIT after it proves replication. A call that is
-- older than the producer's last one is refused.
--- NEEDS  nonce producer
--- GIVES  from total of delay_before others
local before, from, total, of, delay_before, others = redis.call('GET', producer), nil, nil, nil, nil, nil
if before then
  local number = string.match(before, '^%d+')
  if number == nonce then
    from, total, of, delay_before, others = string.match(before, '^%d+ (%S*) (%d+) (%x+) (%d)\n?(.*)$')
    if from then
      redis.call('PEXPIRE', producer, 600000)
    end
  elseif tonumber(number) > tonumber(nonce) then
    return {-7, nonce, number}
  end
end
