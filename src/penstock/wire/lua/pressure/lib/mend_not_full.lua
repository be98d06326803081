-- Keep one token in not_full while there is room, and none otherwise. `space` is the number that it had.
--- NEEDS  space most length not_full
if most > 0 and length >= most then
  if space > 0 then
    redis.call('DEL', not_full)
  end
elseif space ~= 1 then
  redis.call('LPUSH', not_full, '0')
  redis.call('LTRIM', not_full, 0, 0)
end
