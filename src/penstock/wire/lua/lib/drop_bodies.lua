-- Remove the bodies that lie apart of jobs that end, about 64 MiB a call: the server gives their memory back before it answers. The
-- numbers of the others are noted in held under `=`, each with a blank behind it, for the calls that follow. Needs uses and held.
--- NEEDS  held uses
--- GIVES  large room owed drop_bodies
local large = uses ~= '' and string.find(uses, 'b', 1, true)
local room, owed = 67108864, large and redis.call('HGET', held, '=') or ''
local function drop_bodies(ids)
  if not large then
    return
  end
  local noted, names, late, at = owed, {}, {}, 1
  for i = 1, #ids do
    if room > 0 then
      names[#names + 1] = '=' .. ids[i]
      room = room - redis.call('HSTRLEN', held, '=' .. ids[i])
    else
      late[#late + 1] = ids[i] .. ' '
    end
  end
  while at < #noted and room > 0 and #names < 1000 do
    local id, behind = string.match(noted, '^(%S+) ()', at)
    local value = redis.call('HGET', held, id) or ''
    if not string.find(value, '^@[^\n]*\n%+') and string.byte(value) ~= 43 then -- an update has not given the job another one
      names[#names + 1] = '=' .. id
      room = room - redis.call('HSTRLEN', held, '=' .. id)
    end
    at = behind
  end
  owed = string.sub(noted, at) .. table.concat(late)
  if #names > 0 then
    redis.call('HDEL', held, unpack(names))
  end
  if owed == '' and noted ~= '' then
    redis.call('HDEL', held, '=')
  elseif owed ~= noted then
    redis.call('HSET', held, '=', owed)
  end
end
