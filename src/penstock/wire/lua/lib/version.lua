-- A queue of another version of the protocol is refused before anything is read into it.
if m[1] and m[1] ~= '2' then
  return {-6, nonce, m[1]}
end
