-- Make codes for each job from the result of check_receipts, also if all_valid. has_receipt[i] tells if a receipt was
-- given. A job that is named twice ends once: its second code is 2.
--- NEEDS  count all_valid codes where ids common numbers
--- GIVES  has_receipt
local has_receipt, named = {}, {}
for i = 1, count do
  if all_valid then
    codes[i], where[i] = 1, 'active'
  end
  if codes[i] == 1 and where[i] ~= 'once' then
    codes[i] = named[ids[i]] and 2 or 1
    named[ids[i]] = true
  end
  has_receipt[i] = common ~= '' and (common ~= '*' or numbers[i * 2] ~= '')
end
