-- drop_bodies(ids) removes the large bodies of jobs that end, about 64 MiB a call: the server frees their memory
-- before it answers. It keeps the numbers of the others in held under `=`, each followed by a blank, for later
-- calls.
--- KEYS   held
--- NEEDS  uses
--- GIVES  has_large_bodies bytes_left bodies_left drop_bodies
local has_large_bodies = uses_any('large_bodies')
local bytes_left, bodies_left = 67108864, has_large_bodies and redis.call('HGET', held, '=') or ''
local function drop_bodies(ids)
  if not has_large_bodies then
    return
  end
  local noted, names, late, at = bodies_left, {}, {}, 1
  for i = 1, #ids do
    if bytes_left > 0 then
      names[#names + 1] = '=' .. ids[i]
      bytes_left = bytes_left - redis.call('HSTRLEN', held, '=' .. ids[i])
    else
      late[#late + 1] = ids[i] .. ' '
    end
  end
  while at < #noted and bytes_left > 0 and #names < 1000 do
    local id, behind = string.match(noted, '^(%S+) ()', at)
    local value = redis.call('HGET', held, id) or ''
    if not string.find(value, '^@[^\n]*\n%+') and string.byte(value) ~= 43 then -- no update has given the job a new body
      names[#names + 1] = '=' .. id
      bytes_left = bytes_left - redis.call('HSTRLEN', held, '=' .. id)
    end
    at = behind
  end
  bodies_left = string.sub(noted, at) .. table.concat(late)
  if #names > 0 then
    redis.call('HDEL', held, unpack(names))
  end
  if bodies_left == '' and noted ~= '' then
    redis.call('HDEL', held, '=')
  elseif bodies_left ~= noted then
    redis.call('HSET', held, '=', bodies_left)
  end
end
