-- Move the oldest ready jobs to held and scheduled, about 1 MiB a call, if the stream takes more than twice the memory:
-- it keeps a node of 4 KiB while one of its entries is left. The moved jobs are due since their creation, so reserve
-- takes them in the same order. No job is moved while the queue is paused, when other jobs may be delivered, and for 10
-- minutes after a survey, whose readers read each structure once.
--- KEYS   ready held scheduled
--- NEEDS  paused now surveyed
--- GIVES  moved_jobs moved_bytes
local moved_jobs, moved_bytes = 0, 0
if not paused and now - surveyed >= 600000 and redis.call('XLEN', ready) >= 64 then
  local info, nodes, jobs, size = redis.call('XINFO', 'STREAM', ready), 0, 0, 0
  for i = 1, #info, 2 do
    if info[i] == 'radix-tree-keys' then
      nodes = info[i + 1]
    elseif info[i] == 'length' then
      jobs = info[i + 1]
    elseif info[i] == 'first-entry' or info[i] == 'last-entry' then
      size = size + #info[i + 1][2][2] / 2
    end
  end
  if nodes >= 64 and nodes * 4096 > 2 * jobs * (size + 300) then
    --@include lib/read/number_after
    local records, due, from, over = {}, {}, '-', false
    while not over and moved_jobs < 1000 and moved_bytes < 1048576 do
      local step = math.min(100, 1000 - moved_jobs, math.floor((1048576 - moved_bytes) * moved_jobs / (moved_bytes + 1)) + 1)
      local entries = redis.call('XRANGE', ready, from, '+', 'COUNT', step)
      over = #entries < step
      for i = 1, #entries do
        local id, record = entries[i][1], entries[i][2][2]
        moved_jobs, moved_bytes = moved_jobs + 1, moved_bytes + #record
        records[moved_jobs * 2 - 1], records[moved_jobs * 2] = id, record
        due[moved_jobs * 2 - 1], due[moved_jobs * 2] = string.format('%.0f', math.min(now, tonumber(string.sub(id, 1, -12)))), id
      end
      if #entries > 0 then
        from = number_after(entries[#entries][1])
      end
    end
    redis.call('HSET', held, unpack(records))
    redis.call('ZADD', scheduled, unpack(due))
    redis.call('XTRIM', ready, 'MINID', from)
  end
end
