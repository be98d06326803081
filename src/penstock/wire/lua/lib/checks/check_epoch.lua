-- Refuse ids of an earlier queue of this name. If the queue does not exist, every job is gone.
--- KEYS   ready held
--- NEEDS  nonce epoch wanted
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
elseif wanted ~= '' and epoch ~= wanted then
  return {-9, nonce, epoch}
end
