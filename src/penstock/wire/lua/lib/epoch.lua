-- An id of an earlier life of the queue, or of a queue that never was, names no job here.
if wanted ~= '' and m[2] ~= wanted then
  return {-9, nonce, m[2] or ''}
end
