-- Find out if this call is a repeat: then it gets its first answer, from the producer's note in meta (`from` and what
-- follows). It also writes, so that a WAIT after it proves replication. A call that is older than the producer's last
-- one is refused. `seed`: a part of the producer's id, as a number.
--- KEYS   meta
--- NEEDS  nonce producer before seed
--- SETS   seed
--- GIVES  from total of delay_before others
seed = tonumber(string.sub(producer, 1, 8), 16)
local from, total, of, delay_before, others = nil, nil, nil, nil, nil
if not seed or #producer ~= 16 then
  return {-19, nonce, 'producer', string.sub(producer, 1, 200)}
end
if before then
  local number = string.match(before, '^%d+')
  if number == nonce then
    from, total, of, delay_before, others = string.match(before, '^%d+ (%S*) (%d+) (%x+) (%d) %d+\n?(.*)$')
    if from then
      redis.call('HDEL', meta, '-') -- so that a full server answers, too
      redis.call('HSET', meta, '@' .. producer, before)
    end
  elseif #number > #nonce or #number == #nonce and number > nonce then -- texts are quicker than numbers
    return {-7, nonce, number}
  end
end
