-- settled's answer spelt out for each job, also when all of them may be ended; receipts[i] = one was shown.
-- A job named twice may be ended once: it is answered 2 the second time.
local receipts, named = {}, {}
for i = 1, count do
  if all then
    ids[i], codes[i], where[i] = ARGV[base + i - 1], 1, 'active'
  end
  if named[ids[i]] and codes[i] == 1 then
    codes[i] = 2
  end
  named[ids[i]] = true
  receipts[i] = common ~= '' and (common ~= '*' or ARGV[base + i * 2 - 1] ~= '')
end
