-- lapsed(id, lease_score) returns the state ('expired' or 'dead') and the time of a job that has ended but is not yet removed;
-- nil if it has not ended. dead: it is the callback of a batch that was not closed in time. A callback that was promoted does
-- not wait for its batch any more: it has not ended. lease_score: its score in `once`, if it has one.
--- KEYS   scheduled expiry batches
--- NEEDS  end_of now uses
--- GIVES  lapsed abandoned_error
--@include lib/batches/abandoned_error
local function lapsed(id, lease_score)
  local ends = tonumber(redis.call('ZSCORE', expiry, id) or lease_score and end_of(lease_score))
  if ends and ends <= now then
    if not (uses_any('batches') and redis.call('HEXISTS', batches, id) == 1) then
      return 'expired', ends
    elseif redis.call('ZSCORE', scheduled, id) then
      return 'dead', ends
    end
  end
end
