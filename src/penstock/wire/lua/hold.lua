--- Hold a queue, or one key of it: nothing of it is delivered for a time. It ends by itself. Of two holds the one that ends later stays.
--- KEYS     @queue
--- ARGV     nonce span key
---          span  ms from now; 0 = end the hold
---          key   the hash of a key, 13 hex digits: only its jobs are held; '' or left out = the queue
--- BOUNDS   span 0 86400000
--- META     v epoch seen off uses paused held_until=stored
--- RETURNS  {1, nonce, left}              left: ms for which the queue, or the key, is held now; 0 = it is not held
---          {0, nonce}                    no such queue
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/checks/check_damaged
if not epoch then
  return {0, nonce}
end
--@include lib/meta/now (gives: changes, change)
--@include lib/meta/use
if (key or '') ~= '' then
  if not string.find(key, '^' .. string.rep('%x', 13) .. '$') then
    return {-19, nonce, 'key', string.sub(key, 1, 200)}
  end
  local hash, wake_empty = string.format('%.0f', tonumber(key, 16)), redis.call('LLEN', wake) == 0
  --@include lib/keyed/hold_end
  redis.call('ZCARD', holds)
  local is_held = hold_end(hash)
  local ends = span + 0 > 0 and math.max(now + span, is_held or 0) or now
  redis.call('ZCARD', turns)
  redis.call('HDEL', held, '-')
  if ends > now then
    use('tickets')
    use('key_holds')
    redis.call('ZREM', turns, hash)
  end
  if ends > now or is_held then -- one that ends now is dropped by the next delivery
    redis.call('ZADD', holds, string.format('%.0f', ends), hash)
  end
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
  if ends == now and is_held and paused ~= 'out' and paused ~= 'all' and wake_empty then
    redis.call('RPUSH', wake, '1')
  end
  return {1, nonce, ends - now}
end
--@include lib/deliver/hold (gives: held_until)
local ends, wake_empty = span + 0 > 0 and math.max(now + span, held_until or 0), redis.call('LLEN', wake) == 0
if ends then
  use('holds')
  change('held_until', string.format('%.0f', ends))
elseif stored then
  change('uses', (string.gsub(uses, letters('holds'), '')))
end
redis.call('HDEL', held, '-')
if not ends and stored then
  redis.call('HDEL', meta, 'held_until')
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
if not ends and held_until and paused ~= 'out' and paused ~= 'all' and wake_empty then
  redis.call('RPUSH', wake, '1')
end
return {1, nonce, ends and ends - now or 0}
