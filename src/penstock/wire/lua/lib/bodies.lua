-- Remove the bodies that lie apart of jobs that end. Needs uses.
local large = uses ~= '' and string.find(uses, 'b', 1, true)
local function drop_bodies(ids, from)
  local names = {}
  for i = from or 1, large and #ids or 0 do
    names[#names + 1] = '=' .. ids[i]
  end
  if #names > 0 then
    redis.call('HDEL', held, unpack(names))
  end
end
