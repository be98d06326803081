-- Features that the queue uses, a letter each: they tell scripts which keys to look at. use(letter) notes one.
--- NEEDS  uses change
--- SETS   uses
--- GIVES  use
local function use(letter)
  if not string.find(uses, letter, 1, true) then
    uses = uses .. letter
    change('uses', uses)
  end
end
