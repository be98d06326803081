-- void_receipts(deliveries) sets the number of the next delivery aside, `2+`: no receipt fits until that delivery.
--- GIVES  void_receipts
local function void_receipts(d)
  return string.find(d, '+', 1, true) and d or d + 1 .. '+'
end
