-- sweep_expired(expired) removes expired jobs in a script that writes nothing else. HDEL comes first: it passes on a full
-- server.
--- KEYS   held space
--- NEEDS  full now remove_expired write_ends_and_wake wake_after_ends
--- GIVES  sweep_expired
local function sweep_expired(expired)
  if #expired.ids + #expired.once > 0 then
    local wants_room = #expired.ids > 0 and full > now and redis.call('LLEN', space) == 0
    redis.call('HDEL', held, '-')
    remove_expired(expired)
    write_ends_and_wake()
    wake_after_ends()
    if wants_room then
      redis.call('RPUSH', space, '1')
    end
  end
end
