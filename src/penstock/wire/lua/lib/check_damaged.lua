-- Refuse jobs without meta: their ids can't be told from those of an earlier queue of this name.
--- NEEDS  ready held nonce v
if not v and redis.call('EXISTS', ready, held) > 0 then
  return {-8, nonce}
end
