-- decide_each(decide) returns the code of each number, decided once, and if one of them was refused.
--- NEEDS  numbers
--- GIVES  decide_each
local function decide_each(decide)
  local codes, known, refused = {}, {}, false
  for i = 1, #numbers do
    local id = numbers[i]
    known[id] = known[id] or decide(id)
    codes[i], refused = known[id], refused or known[id] < 1
  end
  return codes, refused
end
