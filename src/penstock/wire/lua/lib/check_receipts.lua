-- Find out which of the named deliveries may be ended, for ack, nack, release, bury and extend. `numbers` has numbers
-- if all have one receipt (`common`; '' = none), else number, receipt, number, receipt ... ('*'). Gives ids, and all_valid = true when every delivery may be ended; else codes[i] (1 may be ended, 0 gone, -1
-- stale, -2 in another state, 2 ended before with this receipt) and where[i] = 'active' or 'once'. The delivery
-- number is in tally, absent for a first delivery; the tag is the score modulo 4096 (protocol/core.md, Receipt).
--- NEEDS  ready held active once tally nonce common numbers uses score_of
--- GIVES  count ids codes where counts scores all_valid common_score
local stride = common == '*' and 2 or 1
local count, ids, codes, where = #numbers / stride, numbers, {}, {}
if stride == 2 then
  ids = {}
  for i = 1, count do
    ids[i] = numbers[i * 2 - 1]
  end
end
--@include lib/check_batch (gives: delivery, mark, low, has_counters, counts, scores, all_valid)
if common ~= '' and common ~= '*' and not mark then -- malformed: the receipt of no delivery
  delivery, mark, low = '', '', -1
end
--@include lib/is_number
if count > 0 and not all_valid then
  if has_counters and #counts == 0 then
    counts = redis.call('HMGET', tally, unpack(ids))
  end
  for i = 1, count do
    local id, score, place = ids[i], scores[i], 'active'
    if not score and string.find(uses, 'o', 1, true) then
      score, place = redis.call('ZSCORE', once, id), 'once'
    end
    if stride == 2 then
      delivery, mark = string.match(numbers[i * 2], '^(%d+)-(%x%x%x)$')
      low = mark and tonumber(mark, 16)
      if numbers[i * 2] ~= '' and not mark then
        delivery, mark, low = '', '', -1
      end
    end
    local number = counts[i] and string.match(counts[i], '^(%d+) ') or not counts[i] and '1'
    if score then
      if mark and (score % 4096 ~= low or number ~= delivery) then
        codes[i] = -1
      else
        codes[i], where[i] = 1, place
      end
    elseif not is_number(id) then -- each entry of active or once is a number
      return {-19, nonce, 'number', string.sub(id, 1, 200)}
    elseif redis.call('HEXISTS', held, id) == 1 then
      if not mark then
        codes[i] = -2
      else
        codes[i] = counts[i] and number == delivery and 2 or -1
      end
    elseif #redis.call('XRANGE', ready, id, id) == 1 then
      codes[i] = mark and -1 or -2 -- a failover has lost the delivery of this receipt
    else
      codes[i] = 0
    end
  end
end
