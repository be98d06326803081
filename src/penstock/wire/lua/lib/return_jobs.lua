-- return_jobs(decide, counter) gives back the deliveries that may be ended, and returns the reply; `counter` of meta
-- counts them. decide(id, nacked, crashed, released, why) returns when the job may be delivered again (nil = it is
-- dead now), and its counters behind the number of deliveries.
--- NEEDS  ready held active scheduled dead tally expiry meta wake dedup windows nonce count codes where ids counts alarm
---        all_valid change changes common nothing now numbers paused uses
--- SETS   alarm uses
--- GIVES  return_jobs
--@include lib/void_receipts
--@include lib/code_each (gives: has_receipt)
local function return_jobs(decide, counter)
  local returned, dying, new_counters, done = {}, {}, {}, 0
  for i = 1, count do
    if codes[i] == 1 and where[i] == 'once' then
      codes[i] = -2
    elseif codes[i] == 1 then
      local id = ids[i]
      local deliveries, nacked, crashed, released, why =
        string.match(counts[i] or '1 0 0 0', '^(%d+%+?) (%d+) (%d+) (%d+)(.*)$')
      local due, counters = decide(id, nacked, crashed, released, why)
      done = done + 1
      if due then
        returned[#returned + 1] = id
        returned[#returned + 1] = due
      else
        codes[i] = 3
        dying[#dying + 1] = id
      end
      new_counters[#new_counters + 1] = id
      new_counters[#new_counters + 1] = (has_receipt[i] and deliveries or void_receipts(deliveries)) .. ' ' .. counters
    end
  end
  --@include lib/prepare_return
  --@include lib/write_return
  if done > 0 then
    redis.call('HINCRBY', meta, counter, done)
  end
  if #dying == 0 and done == count then
    return {1, nonce, done}
  end
  return {1, nonce, done, unpack(codes)}
end
