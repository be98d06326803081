-- check_receipts(common, numbers) finds out which of the named deliveries may be ended, for ack, nack, release, bury and extend.
-- `numbers` has numbers if all have one receipt (`common`; '' = none), else number, receipt, number, receipt ... ('*'). It returns
-- the refusal of a malformed number, or nil and what it has found: count, ids, and all_valid = true when every delivery may be ended.
-- Otherwise codes[i]: 1 may be ended, 0 gone, -1 stale receipt, -2 in another state, 2 ended before with this receipt; and where[i] =
-- 'active' or 'once'. Also counts (of tally), scores and common_score (see check_first_deliveries), as far as they were read.
--- KEYS   ready held active once tally
--- NEEDS  nonce uses score_of
--- GIVES  check_receipts
--@include lib/checks/is_number
local function check_receipts(common, numbers)
  local stride = common == '*' and 2 or 1
  local count, ids, codes, where = #numbers / stride, numbers, {}, {}
  if count > 1000 then
    return {-19, nonce, 'number', string.sub(numbers[1000 * stride + 1], 1, 200)}
  end
  if stride == 2 then
    ids = {}
    for i = 1, count do
      ids[i] = numbers[i * 2 - 1]
    end
  end
  --@include lib/checks/check_first_deliveries (gives: delivery_number, hex, wanted_tag, has_counters, counts, scores, all_valid, common_score)
  if common ~= '' and common ~= '*' and not hex then -- malformed: the receipt of no delivery
    delivery_number, hex, wanted_tag = '', '', -1
  end
  if count > 0 and not all_valid then
    if has_counters and #counts == 0 then
      counts = redis.call('HMGET', tally, unpack(ids))
    end
    for i = 1, count do
      local id, score, place = ids[i], scores[i], 'active'
      if not score and uses_any('once') then
        score, place = redis.call('ZSCORE', once, id), 'once'
      end
      if stride == 2 then
        delivery_number, hex = string.match(numbers[i * 2], '^(%d+)-(%x%x%x)$')
        wanted_tag = hex and tonumber(hex, 16)
        if numbers[i * 2] ~= '' and not hex then
          delivery_number, hex, wanted_tag = '', '', -1
        end
      end
      local number = counts[i] and string.match(counts[i], '^(%d+) ') or not counts[i] and '1'
      if score then
        if hex and (score % 4096 ~= wanted_tag or number ~= delivery_number) then
          codes[i] = -1
        else
          codes[i], where[i] = 1, place
        end
      elseif not is_number(id) then -- each entry of active or once is a number
        return {-19, nonce, 'number', string.sub(id, 1, 200)}
      elseif redis.call('HEXISTS', held, id) == 1 then
        if not hex then
          codes[i] = -2
        else
          codes[i] = counts[i] and number == delivery_number and 2 or -1
        end
      elseif #redis.call('XRANGE', ready, id, id) == 1 then
        codes[i] = hex and -1 or -2 -- a failover has lost the delivery of this receipt
      else
        codes[i] = 0
      end
    end
  end
  return nil, {
    count = count, ids = ids, codes = codes, where = where, counts = counts, scores = scores, all_valid = all_valid, common_score = common_score
  }
end
