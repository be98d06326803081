-- use(letter) adds a letter to `uses`, which tells scripts which structures to look at. The loader replaces its name: use('marks').
--- NEEDS  uses change
--- SETS   uses
--- GIVES  use
local function use(letter)
  if not string.find(uses, letter, 1, true) then
    uses = uses .. letter
    change('uses', uses)
    if string.find(letters('results marks schedules priorities rate tickets batches max_active holds key_holds notes'), letter, 1, true) then -- unknown to scripts of version 2
      change('v', '3')
    end
  end
end
