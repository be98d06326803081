-- Write what take chose. Scores and types first; then HDEL, which passes on a full server and checks `held`.
local scored, onces, recount, sets = {}, {}, {}, {}
local wrote = false
if #numbers > 0 then
  local fmt, byte = string.format, string.byte
  local note = '@' .. fmt('%.0f', now) .. ' ' .. owner .. '\n'
  local plain = fmt('%.0f', (now + lease) * 4096 + tag)
  soonest = now + lease
  for i = 1, #numbers do
    local id, record = numbers[i], records[i]
    local third, score = byte(record, 3), plain
    if third == 108 or third == 116 then
      local own, ttl = terms(record)
      local stop = ttl and string.sub(id, 1, -12) + ttl
      if own == 0 then
        score = nil
        onces[#onces + 1] = fmt('%.0f', math.min(stop or now + 86400000, 2199023255551) * 4096 + tag)
        onces[#onces + 1] = id
      else
        local till = math.min(now + (own or lease), stop or math.huge)
        soonest = math.min(soonest, till)
        score = fmt('%.0f', till * 4096 + tag)
      end
    end
    if score then
      scored[#scored + 1] = score
      scored[#scored + 1] = id
    end
    sets[i * 2 - 1] = id
    sets[i * 2] = note .. record
    if counts[i] ~= '' then
      recount[#recount + 1] = id
      recount[#recount + 1] = counts[i]
    end
  end
  if #onces > 0 then
    redis.call('ZCARD', once)
    if not string.find(uses, 'o', 1, true) then
      uses = uses .. 'o'
      changes[#changes + 1] = 'uses'
      changes[#changes + 1] = uses
    end
  end
  changes[#changes + 1] = 'delivered'
  changes[#changes + 1] = (delivered or 0) + #numbers
end
if #recount > 0 or #fallen > 0 then
  redis.call('HLEN', tally)
  redis.call('ZCARD', dead)
  if not string.find(uses, 'r', 1, true) then
    uses = uses .. 'r'
    changes[#changes + 1] = 'uses'
    changes[#changes + 1] = uses
  end
end
if #numbers + #due + #lapsed + #spent + #dropped + #fallen > 0 or cut then
  local call = redis.call
  call('HDEL', held, '-')
  wrote = true
  if #sets > 0 then
    call('HSET', held, unpack(sets))
  end
  if #scored > 0 then
    if #scored < 32 then
      call('ZADD', active, unpack(scored))
    else
      -- A member above 64 bytes makes the server keep a skiplist: adding to a listpack costs the square of the batch.
      local long = string.rep('~', 65)
      call('ZADD', active, 0, long, unpack(scored))
      call('ZREM', active, long)
    end
  end
  if #onces > 0 then
    call('ZADD', once, unpack(onces))
    for i = 2, #onces, 2 do
      call('ZREM', expiry, onces[i])
    end
  end
  if #due > 0 then
    call('ZREM', scheduled, unpack(due))
  end
  if cut then
    call('XTRIM', ready, 'MINID', string.sub(cut, 1, -11) .. string.format('%.0f', string.sub(cut, -10) + 1))
  end
  if #dropped > 0 then -- an index entry whose record is gone: evicted, or a damaged restore
    call('ZREM', active, unpack(dropped))
    call('HDEL', tally, unpack(dropped))
    call('ZREM', expiry, unpack(dropped))
    call('HINCRBY', meta, 'dangling', #dropped)
  end
  for i = 1, #fallen, 2 do
    call('ZREM', active, fallen[i])
    call('ZREM', expiry, fallen[i])
    call('ZADD', dead, now, fallen[i])
    recount[#recount + 1] = fallen[i]
    recount[#recount + 1] = fallen[i + 1]
  end
  if #recount > 0 then
    call('HSET', tally, unpack(recount))
  end
  if crashes > 0 then
    call('HINCRBY', meta, 'crashed', crashes)
  end
  if #fallen > 0 then
    call('HINCRBY', meta, 'died', #fallen / 2)
    --@include lib/trim
  end
  --@include lib/expire
end
