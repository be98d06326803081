-- is_number(id) returns if id is ms, a dash and ten digits, and neither part begins with 0 (protocol/core.md, Job number).
--- GIVES  is_number
local function is_number(id)
  return #id <= 26 and string.byte(id, -11) == 45 and string.find(id, '^[1-9]%d*%-[1-9]%d+$')
end
