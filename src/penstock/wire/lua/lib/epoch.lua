-- An id of an earlier life of the queue, or of a queue that never was, names no job here.
if wanted ~= '' and m[2] ~= wanted then
  if not m[2] and redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
  return {-9, nonce, m[2] or ''}
end
