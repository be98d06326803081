-- Refuse a kind that is no exclusive role: it names a field of meta.
--- NEEDS  nonce kind
if kind ~= 'producer' and kind ~= 'consumer' then
  return {-19, nonce, 'kind', string.sub(kind, 1, 200)}
end
