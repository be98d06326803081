--- Open a batch: add its callback, a job that waits for the members. It takes members for an hour from the last one on.
--- KEYS     @queue
--- ARGV     nonce producer create role on record
---          nonce, producer, create, role   as in enqueue
---          on      success = when all members are done; failure = the same, and its follow-up is added when only dead letters are
---                  left to wait for; finished = when each is done, dead, or has ended otherwise. With a + behind it the values of the
---                  members are kept for the callback
---          record  the callback, without ttl, dedup id and key. max_length does not count for it
--- BOUNDS   nonce 1 9007199254740991
--- META     v epoch last seen off paused uses max_length full alarm enqueued replicas @producer=before
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas}  as in enqueue; first: number of the callback,
---                                                            which names the batch
---          {-4, nonce, paused}                               as in enqueue, as are all that follow
---          {-5, nonce}                                       no such queue
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 a later call of this producer came first
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               the record is of no known version, or has a ttl, a dedup id or a key
---          {-14, nonce}                                      closed for producers
---          {-15, nonce, kind, owner, left}                   another producer has the role
---          {-16, nonce, kind}                                the role of the call has ended
---          {-19, nonce, name, value}                         malformed argument: create, or the lease of the record
--- FROM none  TO scheduled
local bound, n, sweep_limit, list = '', 1, 102, {record}
--@include lib/checks/check_version
--@include lib/add/check_producer (gives: raw, now, created, change)
--@include lib/add/find_limit_and_expired (gives: wake_empty, expired, remove_expired, write_ends)
--@include lib/checks/is_duration
--@include lib/add/assign_numbers (gives: ms, first, ids)
local call, record_index, batch = redis.call, {}, nil
--@include lib/add/split_body
if string.find(record, '^1[;l=%d]*;t=') or string.find(string.match(record, '^[^\n]*'), ';[dq]=') then
  return {-10, nonce, 1}
end
--@include lib/add/check_records
local refusal, features = check_records(list, record_index, ids, ms)
if refusal then
  return refusal
end
local bodies = features.bodies
call('HLEN', batches) -- check the types before the first write
call('HLEN', tally)
call('ZCARD', scheduled)
call('ZCARD', expiry)
local space_empty = call('LLEN', space) == 0
call('HSET', held, first, split_body(first, record, bodies))
if #bodies > 0 then
  call('HSET', held, unpack(bodies))
end
call('ZADD', scheduled, '9007199254740991', first)
call('ZADD', expiry, string.format('%.0f', now + 3600000), first)
local condition, values = string.match(on, '^(%a*)(%+?)')
call('HSET', batches, first, (condition == 'success' and 's' or condition == 'failure' and 't' or 'f') .. ' 0 0 0 0 1')
change('@' .. producer, nonce .. ' ' .. first .. ' 1 ' .. epoch .. ' 1 ' .. string.format('%.0f', raw))
--@include lib/meta/use
use('batches')
use('ttls')
use('counters')
if values == '+' then
  call('HSET', tally, 'nb' .. first, '0 0')
  use('marks')
  use('notes')
end
--@include lib/add/note_features
--@include lib/add/note_added
remove_expired(expired)
local successor_due = write_ends()
if successor_due and successor_due <= now and paused ~= 'out' and wake_empty then
  call('RPUSH', wake, '1')
end
if full > now and #expired.ids > 0 and space_empty then
  call('RPUSH', space, '1')
end
return {1, nonce, first, n, epoch, created, 0, 1, replicas}
