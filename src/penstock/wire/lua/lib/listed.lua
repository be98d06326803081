-- settled's answer spelt out for each job, also when all of them may be ended; receipts[i] = one was shown.
-- A job named twice may be ended once: it is answered 2 the second time.
--- NEEDS  count all codes where ids common numbers
--- GIVES  receipts
local receipts, named = {}, {}
for i = 1, count do
  if all then
    codes[i], where[i] = 1, 'active'
  end
  if codes[i] == 1 and where[i] ~= 'once' then
    codes[i] = named[ids[i]] and 2 or 1
    named[ids[i]] = true
  end
  receipts[i] = common ~= '' and (common ~= '*' or numbers[i * 2] ~= '')
end
