-- Refuse jobs for a batch that takes no more members. `create` names it behind a `&`.
--- KEYS   scheduled tally expiry batches
--- NEEDS  nonce create now uses
--- GIVES  batch keeps_values
--@include lib/batches/keeps_values
local batch = #create > 8 and string.sub(create, 2)
if batch then
  local due, deadline = redis.call('ZSCORE', scheduled, batch), redis.call('ZSCORE', expiry, batch)
  local is_open = due and deadline and tonumber(due) >= tonumber(deadline) and tonumber(deadline) > now
  if not (is_open and string.find(redis.call('HGET', batches, batch) or '', ' 1$')) then
    return {-21, nonce}
  end
end
