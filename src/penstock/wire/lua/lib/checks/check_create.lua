-- Refuse a new epoch that is not 8 small hex digits.
--- NEEDS  nonce create epoch
if #epoch ~= 8 or string.find(epoch, '[^%da-f]') then
  return {-19, nonce, 'create', string.sub(create, 1, 200)}
end
