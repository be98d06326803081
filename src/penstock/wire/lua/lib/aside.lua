-- The number of the next delivery is set aside: no receipt fits until then. That of `2+` has been set aside before.
--- GIVES  aside
local function aside(d)
  return string.find(d, '+', 1, true) and d or d + 1 .. '+'
end
