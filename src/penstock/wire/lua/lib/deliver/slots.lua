-- free_slots() returns how many more jobs may be delivered at once; nothing = the queue has no max_active. It counts each job in active, also
-- when its lease has ended, and those in once whose ttl has not (protocol/rate.md, Slots).
--- KEYS   active once meta
--- NEEDS  now nothing score_of uses
--- GIVES  free_slots
local free_slots = nothing
if uses_any('max_active') then
  local count, rest = string.match(redis.call('HGET', meta, 'max_active') or '', '^([1-9]%d*)(.*)$')
  local parts = rest == '' and 1 or rest and tonumber(string.match(rest, '^/([1-9]%d?%d?)$'))
  if parts then
    local most = math.max(1, math.floor(count / parts))
    local low = '(' .. string.format('%.0f', score_of(now, 4095))
    redis.call('ZCARD', once)
    free_slots = function()
      return most - redis.call('ZCARD', active) - redis.call('ZCOUNT', once, low, '+inf')
    end
    free_slots() -- check the types of its keys
  end
end
