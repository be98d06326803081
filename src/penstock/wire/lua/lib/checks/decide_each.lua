-- decide_each(decide) returns the code of each number, and if one was refused. It decides on each number once.
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
