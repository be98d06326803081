--- Bring dead letters back: attempts start anew, the next delivery is a new one, its place is that of its creation.
--- KEYS     held scheduled dead tally meta wake
--- ARGV     nonce wanted limit [number...]
---          limit   how many of the oldest dead letters, 1 to 1000, when no number is given
---          number  these and no others
--- RETURNS  {1, nonce, done, more}        more: dead letters that are left, when no number was given, else 0
---          {1, nonce, done, 0, code...}  1 done, 0 gone, -2 not dead; when not all of the named were done
---          {-6, nonce, version}          written by a newer protocol
---          {-9, nonce, epoch}            another epoch
--- FROM dead  TO scheduled
local m = redis.call('HMGET', meta, 'v', 'epoch', 'uses', 'seen', 'off', 'paused')
--@include lib/version
--@include lib/epoch
local changes = {}
local seen, off = tonumber(m[4]) or 0, tonumber(m[5]) or 0
--@include lib/now
local ids, codes, back, recount, named = {}, {}, {}, {}, #ARGV > 3
if named then
  ids = {unpack(ARGV, 4)}
else
  ids = redis.call('ZRANGE', dead, 0, limit - 1)
end
for i = 1, #ids do
  local id = ids[i]
  if redis.call('ZSCORE', dead, id) then
    local count = redis.call('HGET', tally, id) or '1 0 0 0'
    codes[i] = 1
    back[#back + 1] = tonumber(string.sub(id, 1, -12))
    back[#back + 1] = id
    recount[#recount + 1] = id
    recount[#recount + 1] = string.match(count, '^%d+') .. ' 0 0 0'
  else
    codes[i] = redis.call('HEXISTS', held, id) == 1 and -2 or 0
  end
end
redis.call('ZCARD', scheduled)
local asleep, token = redis.call('LLEN', wake) == 0, not m[6]
if #back > 0 then
  redis.call('HDEL', held, '-')
  for i = 2, #back, 2 do
    redis.call('ZREM', dead, back[i])
  end
  redis.call('ZADD', scheduled, unpack(back))
  redis.call('HSET', tally, unpack(recount))
  redis.call('HINCRBY', meta, 'redriven', #back / 2)
  --@include lib/wake
end
if named and #back / 2 < #ids then
  return {1, nonce, #back / 2, 0, unpack(codes)}
end
return {1, nonce, #back / 2, named and 0 or redis.call('ZCARD', dead)}
