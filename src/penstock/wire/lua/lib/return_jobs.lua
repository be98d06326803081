-- return_jobs(decide, counter) gives back the deliveries that may be ended; `counter` of meta counts them. It returns the reply.
-- decide(id, nacked, crashed, released, why) returns when the job may be delivered again (nil = it is dead now), and its
-- counters behind the number of deliveries.
--- NEEDS  ready held active scheduled dead tally expiry meta wake dedup windows nonce count codes where ids counts alarm
---        all change changes common now numbers paused uses
--- SETS   alarm uses
--- GIVES  return_jobs
--@include lib/aside
--@include lib/listed
local function return_jobs(decide, counter)
  local back, fallen, recount, done = {}, {}, {}, 0
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
        back[#back + 1] = id
        back[#back + 1] = due
      else
        codes[i] = 3
        fallen[#fallen + 1] = id
      end
      recount[#recount + 1] = id
      recount[#recount + 1] = (receipts[i] and deliveries or aside(deliveries)) .. ' ' .. counters
    end
  end
  --@include lib/placing
  --@include lib/putback
  if done > 0 then
    redis.call('HINCRBY', meta, counter, done)
  end
  if #fallen == 0 and done == count then
    return {1, nonce, done}
  end
  return {1, nonce, done, unpack(codes)}
end
