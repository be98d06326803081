-- lapsed(id, lasting) returns how a job has ended whose time is over, although no script has removed it yet: 'expired', or
-- 'dead' = it is the callback of a batch that was not closed in time; and when. nil = its time is not over. lasting: its
-- score in `once`, if it has one. A callback that was promoted does not wait for its batch any more.
--- NEEDS  scheduled expiry batches end_of now uses
--- GIVES  lapsed abandoned
--@include lib/abandoned
local function lapsed(id, lasting)
  local ends = tonumber(redis.call('ZSCORE', expiry, id) or lasting and end_of(lasting))
  if ends and ends <= now then
    if not (string.find(uses, 'g', 1, true) and redis.call('HEXISTS', batches, id) == 1) then
      return 'expired', ends
    elseif redis.call('ZSCORE', scheduled, id) then
      return 'dead', ends
    end
  end
end
