-- batch_state(callback, entry) returns the entry of a batch without a place, and its state: open, waiting (for members), called
-- (its callback was due, or does not wait any more), failed or abandoned (its callback is a dead letter). nil = no such batch.
--- KEYS   scheduled expiry
--- NEEDS  now
--- GIVES  batch_state
local function batch_state(callback, entry)
  if not entry then
    return nil
  end
  local state, due = string.sub(entry, -1), redis.call('ZSCORE', scheduled, callback)
  local deadline = redis.call('ZSCORE', expiry, callback)
  if state == '1' and due and deadline and tonumber(due) >= tonumber(deadline) then
    return entry, tonumber(deadline) > now and 'open' or 'abandoned'
  elseif state == '0' and tonumber(due or 0) == 9007199254740991 then
    return entry, 'waiting'
  end
  return entry, state == '3' and 'failed' or state == '4' and 'abandoned' or 'called'
end
