-- Write what take chose and leases computed; HDEL first, it passes on a full server and checks `held`.
--- NEEDS  ready held active scheduled once dead tally expiry meta numbers due lapsed spent dropped fallen cut sets
---        scored onces now recount crashes reach write_dedup drop_bodies elsewhere front stood unlisted
--- SETS   elsewhere
--- GIVES  wrote successor_due
--@include lib/trim_dead
local wrote = false
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
  if #dropped > 0 then -- an index entry whose record is gone: evicted, or a damaged restore
    call('HDEL', held, unpack(dropped))
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
    trim_dead(reach)
  end
  --@include lib/expire
  if cut then
    call('XTRIM', ready, 'MINID', string.sub(cut, 1, -11) .. string.format('%.0f', string.sub(cut, -10) + 1))
  end
end
local successor_due = write_dedup()
