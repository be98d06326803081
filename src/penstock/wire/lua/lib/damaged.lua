-- Jobs without meta: their ids can't be told from those of another life of the queue.
--- NEEDS  ready held nonce v
if not v and redis.call('EXISTS', ready, held) > 0 then
  return {-8, nonce}
end
