-- rank_after(index, score, id) returns the rank of the first job behind this place of a sorted set. The job of the place
-- may be gone.
--- GIVES  rank_after
local function rank_after(index, score, id)
  local low, high = redis.call('ZCOUNT', index, '-inf', '(' .. score), redis.call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', index, middle, middle)[1] <= id then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
