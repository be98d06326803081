-- Checks the n records of list, whose version is 1 and whose headers are at most 16384 bytes long. Gives lives (ends of
-- ttl), big (some body may lie apart) and ruled (some job has a policy of its own).
--- NEEDS  held expiry nonce n list is_lease ms now headed whence lives ids
--- SETS   lives
--- GIVES  ruled bodies
local head, ttl, stop, big, ruled, living = nil, nil, nil, false, false, 0
for i = 1, n do
  local record = list[i]
  local version, _, third, _, zero = string.byte(record, 1, 5)
  local own = third == 108 or third == 116
  if own and not (head and string.sub(record, 1, #head) == head) then -- mostly the same as that of the record before
    head = string.match(record, '^.[;lt=%d]*[^;lt=%d]') -- the fields l and t, and one character
    local lease = string.match(record, '^1;l=([^;\n]*)')
    if lease and not is_lease(lease, 0) then
      return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
    end
    ttl = string.match(record, '^1[;l=%d]*;t=(%d+)')
    stop = ttl and string.format('%.0f', (ms - now > 2592000000 and now or ms) + ttl)
    ruled = ruled or string.sub(head, -2) == ';p'
  end
  -- at most once (l=0) needs an end: nothing else would ever remove a job that nobody acknowledges
  if version ~= 49 or third == 108 and zero == 48 and not ttl or not headed(record) then
    return {-10, nonce, whence[i] or i}
  end
  big, ruled = big or #record > 4096, ruled or third == 112
  if own and ttl then
    lives = lives or {}
    lives[living + 1], lives[living + 2], living = stop, ids[i], living + 2
  end
end
if lives then
  redis.call('ZCARD', expiry)
end
if big then
  redis.call('HLEN', held)
end
local bodies = {} -- that lie apart
