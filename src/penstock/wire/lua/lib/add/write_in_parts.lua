-- write_in_parts(values, write) calls write(...) with at most 4,000 of the values at a time; with none it does not call it.
-- unpack fails above about 8,000, behind other writes of the script.
--- GIVES  write_in_parts
local function write_in_parts(values, write)
  for i = 1, #values, 4000 do
    write(unpack(values, i, math.min(i + 3999, #values)))
  end
end
