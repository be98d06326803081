-- check_note(receipt, number) finds out if the delivery with this receipt may note. It returns the refusal of a malformed argument; or nil,
-- a code (1 it may; 4 it may, and the job is to be cancelled; 0, -1, -2, 2 as in check_receipts), and the counters of the job.
--- KEYS   ready held active once tally
--- NEEDS  nonce uses score_of
--- GIVES  check_note
--@include lib/checks/check_receipts
local function check_note(receipt, number)
  if not string.find(receipt, '^%d+%-%x%x%x$') then
    return {-19, nonce, 'receipt', string.sub(receipt, 1, 200)}
  end
  local refusal, checked = check_receipts(receipt, {number})
  if refusal then
    return refusal
  end
  local code, counters = checked.all_valid and 1 or checked.codes[1], checked.counts[1]
  if code == 1 and checked.where[1] == 'once' then
    code = -2
  elseif code == 1 and uses_any('marks') and redis.call('HEXISTS', tally, 'c' .. number) == 1 then
    code = 4
  end
  return nil, code, counters
end
