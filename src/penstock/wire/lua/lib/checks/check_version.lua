-- Refuse a queue of another version of the protocol.
--- NEEDS  nonce v
if v and v ~= '2' and v ~= '3' then
  return {-6, nonce, v}
end
