-- The owner stands in the notes of deliveries, which end at a line feed.
--- NEEDS  nonce owner
if #owner > 200 or string.find(owner, '\n', 1, true) then
  return {-19, nonce, 'owner', string.sub(owner, 1, 200)}
end
