-- What an enqueue notes of its jobs beside the jobs themselves: ends of ttl, the queue if it is new, number and count.
--- NEEDS  expiry meta lives uses changes bodies ruled created epoch now n final enqueued
--- SETS   uses
if lives then
  redis.call('ZADD', expiry, unpack(lives))
  if not string.find(uses, 't', 1, true) then
    uses = uses .. 't'
    changes[#changes + 1] = 'uses'
    changes[#changes + 1] = uses
  end
end
if #bodies > 0 and not string.find(uses, 'b', 1, true) then
  uses = uses .. 'b'
  changes[#changes + 1] = 'uses'
  changes[#changes + 1] = uses
end
if ruled and not string.find(uses, 'p', 1, true) then
  uses = uses .. 'p'
  changes[#changes + 1] = 'uses'
  changes[#changes + 1] = uses
end
if created == 1 then
  changes[#changes + 1] = 'v'
  changes[#changes + 1] = '2'
  changes[#changes + 1] = 'epoch'
  changes[#changes + 1] = epoch
  changes[#changes + 1] = 'uses'
  changes[#changes + 1] = uses
  changes[#changes + 1] = 'made'
  changes[#changes + 1] = now
end
if n > 0 then
  changes[#changes + 1] = 'last'
  changes[#changes + 1] = final
  changes[#changes + 1] = 'enqueued'
  changes[#changes + 1] = enqueued + n
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
