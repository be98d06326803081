-- The role: how many tokens its list has, who had it last, and whether the caller still holds it, as it says.
local tokens = redis.call('LLEN', free)
local last = redis.call('GET', holder)
local is_ours = held == '1' and tokens == 0 and last == id
local function give_back()
  redis.call('LTRIM', free, 0, 0)
  if is_ours then
    redis.call('LPUSH', free, '0')
  end
end
