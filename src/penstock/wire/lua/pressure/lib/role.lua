-- Read the role: the number of tokens in its list, its last party, and if the caller still holds it.
-- A party that has popped the token is not in `holder` yet. If the role was freed and taken by another party since, the keys
-- look equal: the party that popped goes on. The other party, if it waits and uses this protocol, finds that out and waits
-- again.
--- NEEDS  held free holder id
--- GIVES  tokens last is_ours give_back
local tokens = redis.call('LLEN', free)
local last = redis.call('GET', holder)
local is_ours = tokens == 0 and (held == '2' or held == '1' and last == id)
local function give_back()
  redis.call('LTRIM', free, 0, 0)
  if is_ours then
    redis.call('LPUSH', free, '0')
  end
end
