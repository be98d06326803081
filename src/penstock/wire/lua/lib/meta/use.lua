-- use(letter) adds the letter of a structure to `uses`, which tells scripts which keys to look at.
--- NEEDS  uses change
--- SETS   uses
--- GIVES  use
local function use(letter)
  if not string.find(uses, letter, 1, true) then
    uses = uses .. letter
    change('uses', uses)
    if string.find('kmeuaqg', letter, 1, true) then -- older scripts know no results, marks, schedules, priorities, rates, tickets and batches
      change('v', '3')
    end
  end
end
