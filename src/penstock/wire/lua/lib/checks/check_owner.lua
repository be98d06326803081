-- Refuse an owner that does not fit into the note of a delivery: a line feed ends that note.
--- NEEDS  nonce owner
if #owner > 200 or string.find(owner, '\n', 1, true) then
  return {-19, nonce, 'owner', string.sub(owner, 1, 200)}
end
