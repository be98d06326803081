-- A queue written by a newer protocol is refused before anything is read into it.
if m[1] and m[1] ~= '1' then
  return {-6, nonce, m[1]}
end
