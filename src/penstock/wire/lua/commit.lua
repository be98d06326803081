--- Promise that what is staged of these attempts will be in the queue, whatever happens from now on. What was promised first
--- holds: it is told, and is to be published.
--- KEYS     stage commit meta
--- ARGV     nonce batch [attempt chunks...]
---          batch    which batch of its writer
---          attempt  its name, and how many chunks it has, 1 at least; whichever has its last one has them all
--- RETURNS  {1, nonce, chunks}                     promised; chunks: how many are staged, those of other attempts included
---          {2, nonce, batch, state, stages}       promised before, this batch or a later one: state 'promised' or 'done';
---                                                 stages: the attempts and their chunks, with spaces between
---          {0, nonce, attempt}                    what this attempt has staged is not there any more; nothing is promised
---          {-6, nonce, version}                   written by a newer protocol
local m = redis.call('HMGET', meta, 'v')
--@include lib/version
local told = redis.call('HMGET', commit, 'batch', 'state', 'stages')
if told[1] and (tonumber(told[1]) >= tonumber(batch) or told[2] ~= 'done') then
  return {2, nonce, tonumber(told[1]), told[2], told[3] or ''}
end
local stages = {}
for i = 3, #ARGV, 2 do
  if redis.call('HEXISTS', stage, ARGV[i] .. ':' .. string.format('%.0f', ARGV[i + 1] - 1)) == 0 then
    return {0, nonce, ARGV[i]}
  end
  stages[#stages + 1] = ARGV[i] .. ' ' .. ARGV[i + 1]
end
local chunks = redis.call('HLEN', stage)
redis.call('HSET', commit, 'batch', batch, 'state', 'promised', 'stages', table.concat(stages, ' '))
redis.call('PERSIST', commit)
redis.call('PERSIST', stage)
return {1, nonce, chunks}
