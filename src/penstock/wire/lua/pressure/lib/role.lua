-- The role: how many tokens its list has, who had it last, and whether the caller still holds it, as it says.
-- Who has popped the token has not said so in `holder` yet.
local tokens = redis.call('LLEN', free)
local last = redis.call('GET', holder)
local is_ours = tokens == 0 and (held == '2' or held == '1' and last == id)
local function give_back()
  redis.call('LTRIM', free, 0, 0)
  if is_ours then
    redis.call('LPUSH', free, '0')
  end
end
