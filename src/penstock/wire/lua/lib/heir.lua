-- Whoever waits is told that a job which waited for another one's end is due.
--- NEEDS  wake heir_token now heir_asleep paused
if heir_token and heir_token <= now and heir_asleep and paused ~= 'out' and paused ~= 'all' then
  redis.call('RPUSH', wake, '1')
end
