-- use(letter) adds the letter of a structure to `uses`, which tells scripts which keys to look at.
--- NEEDS  uses change
--- SETS   uses
--- GIVES  use
local function use(letter)
  if not string.find(uses, letter, 1, true) then
    uses = uses .. letter
    change('uses', uses)
    if letter == 'k' or letter == 'm' or letter == 'e' then -- older scripts know no results, marks and schedules
      change('v', '3')
    end
  end
end
