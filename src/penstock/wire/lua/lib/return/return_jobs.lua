-- return_jobs(checked, has_receipt, decide, keeps_place, counter) gives back the deliveries that may be ended, as check_receipts and code_each have
-- found them, and returns the reply; `counter` of meta counts them, if it is a name. decide(id, nacked, crashed, released, why) returns when the job may
-- be delivered again (nil = it is dead now), its counters behind the number of deliveries, and the letter and the value of a mark that
-- changes. A job that cancel has marked ends. keeps_place: jobs with tickets are due as `decide` says, else not before now.
--- KEYS   ready held active scheduled urgent once dead tally expiry finished members batches dedup windows meta wake parked
---        tickets turns paces holds
--- NEEDS  nonce nothing now paused score_of seen uses alarm change changes
--- SETS   uses alarm
--- GIVES  return_jobs
--@include lib/return/void_receipts
local function return_jobs(checked, has_receipt, decide, keeps_place, counter)
  local count, ids, codes, where, counts = checked.count, checked.ids, checked.codes, checked.where, checked.counts
  local returned, dying, cancelled, new_counters, marks, done = {}, {}, {}, {}, {}, 0
  local is_cancelled = {}
  if uses_any('marks') and count > 0 then
    local fields = {}
    for i = 1, count do
      fields[i] = 'c' .. ids[i]
    end
    is_cancelled = redis.call('HMGET', tally, unpack(fields))
  end
  for i = 1, count do
    if codes[i] == 1 and where[i] == 'once' then
      codes[i] = -2
    elseif codes[i] == 1 then
      local id = ids[i]
      local deliveries, nacked, crashed, released, why =
        string.match(counts[i] or '1 0 0 0', '^(%d+%+?) (%d+) (%d+) (%d+)(.*)$')
      done = done + 1
      if is_cancelled[i] then
        codes[i] = 4
        cancelled[#cancelled + 1] = id
      else
        local due, counters, letter, mark = decide(id, nacked, crashed, released, why)
        if due then
          returned[#returned + 1] = id
          returned[#returned + 1] = due
        else
          codes[i] = 3
          dying[#dying + 1] = id
        end
        new_counters[#new_counters + 1] = id
        new_counters[#new_counters + 1] = (has_receipt[i] and deliveries or void_receipts(deliveries)) .. ' ' .. counters
        if letter then
          marks[#marks + 1] = letter .. id
          marks[#marks + 1] = mark
        end
      end
    end
  end
  --@include lib/return/prepare_return (gives: release_dedup, keyed)
  release_dedup(dying, false)
  release_dedup(cancelled, false)
  if keyed and not keeps_place then
    keyed.line_up(returned)
  end
  --@include lib/return/write_return
  --@include lib/return/wake_returned
  if done > 0 then
    wake_returned(write_return(returned, dying, cancelled, new_counters, marks))
  end
  if counter and done > #cancelled then
    redis.call('HINCRBY', meta, counter, done - #cancelled)
  end
  if #dying + #cancelled == 0 and done == count then
    return {1, nonce, done}
  end
  return {1, nonce, done, unpack(codes)}
end
