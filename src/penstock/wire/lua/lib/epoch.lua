-- An id of an earlier life of the queue names no job here; where there is no queue, every job is gone.
if wanted ~= '' and m[2] ~= wanted then
  if m[2] then
    return {-9, nonce, m[2]}
  elseif redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
end
