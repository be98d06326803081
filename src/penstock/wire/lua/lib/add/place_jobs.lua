-- place(id, at, priority) notes the time from which a waiting job may be delivered; write_places() writes it. A job with a
-- priority has its place in scheduled before the usual jobs, at -priority * 2^42 + time, as soon as that time has come.
-- Until then it is also in urgent (protocol/priorities.md).
--- KEYS   scheduled urgent
--- NEEDS  now has_urgent
--- GIVES  place write_places
local place, write_places
do
  --@include lib/add/write_in_parts
  local places, placed, coming = {}, {}, {}
  place = function(id, at, priority)
    local score = at
    if priority > 0 and tonumber(at) <= now then
      score = string.format('%.0f', at - priority * 4398046511104)
    elseif priority > 0 then -- 2^49 - 1 stands for the time of a successor, 2^53 - 1
      coming[#coming + 1] = string.format('%.0f', math.min(at, 562949953421311) * 16 + priority)
      coming[#coming + 1] = id
    end
    placed[#placed + 1] = id
    places[#places + 1] = score
    places[#places + 1] = id
  end
  write_places = function()
    write_in_parts(places, function(...) redis.call('ZADD', scheduled, ...) end)
    if has_urgent then
      write_in_parts(placed, function(...) redis.call('ZREM', urgent, ...) end)
    end
    write_in_parts(coming, function(...) redis.call('ZADD', urgent, ...) end)
  end
end
