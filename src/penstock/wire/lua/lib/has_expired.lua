-- has_expired(id) returns if the ttl of a job has ended, although no script has removed the job yet.
--- NEEDS  expiry once end_of now
--- GIVES  has_expired
local function has_expired(id)
  local ends, lasting = redis.call('ZSCORE', expiry, id), redis.call('ZSCORE', once, id)
  return ends and tonumber(ends) <= now or lasting and end_of(lasting) <= now
end
