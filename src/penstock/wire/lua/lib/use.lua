-- use(letter) notes a feature that the queue uses: `uses` tells scripts which keys to look at.
--- NEEDS  uses change
--- SETS   uses
--- GIVES  use
local function use(letter)
  if not string.find(uses, letter, 1, true) then
    uses = uses .. letter
    change('uses', uses)
  end
end
