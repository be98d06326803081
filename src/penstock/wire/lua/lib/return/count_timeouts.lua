-- count_timeouts(outcomes) returns how many outcomes of waits are timeouts, and their bytes.
--- GIVES  count_timeouts
local function count_timeouts(outcomes)
  local count, bytes = 0, 0
  for from, to in string.gmatch(outcomes, '()\n[^\t]*\tt\t%d+\t()') do
    count, bytes = count + 1, bytes + to - from
  end
  return count, bytes
end
