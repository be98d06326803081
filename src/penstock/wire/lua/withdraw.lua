--- Remove jobs that were never delivered. Other jobs stay as they are.
--- KEYS     @queue
--- ARGV     nonce wanted [number...]
---          number  1 to 1000
--- META     v epoch full seen off uses paused
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     1 done, 0 gone, -2 has been delivered, or is dead
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM ready, scheduled  TO none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
--@include lib/checks/check_numbers
--@include lib/checks/decide_each
local found = {}
local function decide(id)
  local value, code = redis.call('HGET', held, id), nil
  if not value then
    code = #redis.call('XRANGE', ready, id, id)
  else -- a delivery has left its note
    code = string.byte(value) ~= 64 and (redis.call('ZSCORE', scheduled, id) or redis.call('ZSCORE', parked, id)) and 1 or -2
  end
  if code == 1 then
    found[#found + 1] = id
  end
  return code
end
local codes, refused = decide_each(decide)
redis.call('ZCARD', scheduled)
redis.call('ZCARD', expiry)
redis.call('HLEN', tally)
redis.call('XLEN', ready)
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
--@include lib/deliver/wake_after_ends
release_dedup(found, false)
local wants_room = full > now and redis.call('LLEN', space) == 0
--@include lib/finish/remove_waiting
if #found > 0 then
  remove_waiting(found, 'withdrawn')
end
if not refused then
  return {1, nonce, #found}
end
return {1, nonce, #found, unpack(codes)}
