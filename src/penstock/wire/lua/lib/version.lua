-- A queue of another version of the protocol is refused before anything is read into it.
--- NEEDS  nonce v
if v and v ~= '2' then
  return {-6, nonce, v}
end
