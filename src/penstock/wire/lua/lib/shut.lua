-- Write what lib/panes found out; behind a write that passes on a full server.
--- NEEDS  dedup windows panes shut kept_by
if #panes > 0 then
  redis.call('ZREM', windows, unpack(panes))
  if #shut > 0 then
    redis.call('HDEL', dedup, unpack(shut))
  end
  if #kept_by > 0 then
    redis.call('HSET', dedup, unpack(kept_by))
  end
end
