-- code_each(checked, common, numbers) completes the codes in the result of check_receipts, also if all_valid: a job that is named twice
-- ends once, its second code is 2. It returns for each if a receipt was given.
--- GIVES  code_each
local function code_each(checked, common, numbers)
  local ids, codes, where = checked.ids, checked.codes, checked.where
  local has_receipt, named = {}, {}
  for i = 1, checked.count do
    if checked.all_valid then
      codes[i], where[i] = 1, 'active'
    end
    if codes[i] == 1 and where[i] ~= 'once' then
      codes[i] = named[ids[i]] and 2 or 1
      named[ids[i]] = true
    end
    has_receipt[i] = common ~= '' and (common ~= '*' or numbers[i * 2] ~= '')
  end
  return has_receipt
end
