--- Remove jobs, whatever state they are in; a delivery of theirs ends, and its holder's receipt is void.
--- KEYS     ready held active scheduled once dead tally expiry meta space wake dedup windows
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch full seen off uses paused
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled, active, dead  TO none
--@include lib/version
--@include lib/epoch
--@include lib/now
--@include lib/number
local codes, found, named = {}, {}, {}
for i = 1, #numbers do
  local id = numbers[i]
  if not is_number(id) then
    return {-19, nonce, 'number', string.sub(id, 1, 200)}
  end
  local there = redis.call('HEXISTS', held, id) == 1 or #redis.call('XRANGE', ready, id, id) == 1
  codes[#codes + 1] = there and 1 or 0
  if there and not named[id] then
    named[id] = true
    found[#found + 1] = id
  end
end
for _, index in ipairs({active, scheduled, once, dead, expiry}) do
  redis.call('ZCARD', index)
end
redis.call('HLEN', tally)
redis.call('XLEN', ready)
--@include lib/drop_bodies
--@include lib/release_dedup
--@include lib/check_closed
release_dedup(found, false)
local hungry = full > now and redis.call('LLEN', space) == 0
if #found > 0 then
  redis.call('HDEL', held, unpack(found))
  drop_bodies(found)
  redis.call('XDEL', ready, unpack(found))
  for _, index in ipairs({active, scheduled, once, dead, expiry}) do
    redis.call('ZREM', index, unpack(found))
  end
  redis.call('HDEL', tally, unpack(found))
  redis.call('HINCRBY', meta, 'deleted', #found)
  --@include lib/freed
end
local gone = false
for i = 1, #codes do
  gone = gone or codes[i] == 0
end
if not gone then
  return {1, nonce, #found}
end
return {1, nonce, #found, unpack(codes)}
