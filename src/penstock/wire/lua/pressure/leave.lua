--- Give the role back, if the caller still holds it.
--- KEYS     queue bound holder free idle not_full closed
--- ARGV     nonce id held
---          id    of the party that held it
---          held  1: the caller has held the role since an earlier call; 2: it has popped the token of the role, and no more
--- RETURNS  {1, nonce}  given back
---          {0, nonce}  the caller did not hold it
--@include pressure/lib/role (gives: is_ours, give_back)
-- A popped token belongs to the queue that exists now, if any.
if not is_ours or held == '2' and redis.call('EXISTS', queue, bound, idle, not_full, closed) == 0 then
  return {0, nonce}
end
give_back()
return {1, nonce}
