-- number_after(id) returns the number behind this one: no other is between them.
--- GIVES  number_after
local function number_after(id)
  return string.sub(id, 1, -11) .. string.format('%.0f', string.sub(id, -10) + 1)
end
