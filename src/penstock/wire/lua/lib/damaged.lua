-- Jobs without meta: their ids can't be told from those of another life of the queue. Needs m (v comes first), ready, held.
if not m[1] and redis.call('EXISTS', ready, held) > 0 then
  return {-8, nonce}
end
