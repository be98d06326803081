-- Refuse a queue with jobs but without meta: its epoch is unknown, so its ids can't be checked.
--- KEYS   ready held
--- NEEDS  nonce v
if not v and redis.call('EXISTS', ready, held) > 0 then
  return {-8, nonce}
end
