--- Move staged jobs of one chunk into the queue: as many as requested, or none.
--- KEYS     @queue stage commit
--- ARGV     nonce producer create bound wait role field most
---          nonce, producer, create, bound, wait, role   as in enqueue
---          field   the chunk; if it does not exist, it was moved before
---          most    the most jobs to move, the first ones of the chunk; the others stay
--- BOUNDS   nonce 1 9007199254740991  bound? 0 9007199254740991  wait 0 3162240000000  most 1 1000
--- META     v epoch last seen off paused uses max_length full alarm enqueued replicas @producer=before
--- RETURNS  {1, nonce, first, count, epoch, created, repeat, scheduled, replicas, others: (index, what, number, state, header)...}  as in
---                               claim, of the jobs that were moved
---          {-3, nonce, waiting, limit, expired}              as in enqueue
---          {-4, nonce, paused}                               as in enqueue
---          {-5, nonce}                                       as in enqueue
---          {-6, nonce, version}                              written by a newer protocol
---          {-7, nonce, last}                                 as in enqueue
---          {-8, nonce}                                       damaged: jobs, but no meta
---          {-10, nonce, index}                               as in claim
---          {-14, nonce}                                      as in enqueue
---          {-15, nonce, kind, owner, left}                   as in enqueue
---          {-16, nonce, kind}                                as in enqueue
---          {-19, nonce, name, value}                         malformed argument: create, delay, or a priority on an ordered queue
---          {-21, nonce}                                      no such open batch
---          {-18, nonce}                                      the promise has ended: its time is over, or the queue was cleared or purged since
--- FROM none, active  TO ready, scheduled, active
if redis.call('HGET', commit, 'era') ~= (redis.call('GET', writes) or '') then
  return {-18, nonce}
end
local chunk = redis.call('HGET', stage, field)
--@include lib/read/read_staged (gives: batch_name, batch_ends, batch_rows, batch_era)
local delay, asked, given, rest = '0', 0, {}, nil
if chunk then
  --@include lib/add/wrong_time
  local stop = string.find(chunk, '\n', 1, true)
  local sizes, ends = string.sub(chunk, 1, stop - 1), stop
  delay = string.match(sizes, '^%S+')
  for place, size in string.gmatch(sizes, '() (%d+)') do
    if asked == tonumber(most) then
      local own = 1 -- where the delays of the others begin; one delay is that of all
      for _ = 1, string.find(delay, ',', 1, true) and asked or 0 do
        own = string.find(delay, ',', own, true) + 1
      end
      rest = string.sub(delay, own) .. string.sub(sizes, place) .. '\n' .. string.sub(chunk, ends + 1)
      break
    end
    asked = asked + 1
    local record, name = string.sub(chunk, ends + 1, ends + size), nil
    repeat -- a promised job must be added: older scripts staged times out of bounds
      local _, mended
      name, _, mended = wrong_time(record, 0)
      record = mended or record
    until not name
    given[asked] = record
    ends = ends + size
  end
end
--@include lib/checks/check_version
--@include lib/dedup/claim_records
local compared = {} -- `stage` has compared their ttl with the delay
local reply, is_added = claim_records(given, producer, create, delay, bound, wait, role, '', compared)
if not is_added then
  return reply
end
if rest then
  redis.call('HSET', stage, field, rest)
else
  redis.call('HDEL', stage, field)
end
if batch_rows then
  redis.call('HSET', staged, batch_name, string.format('%s %.0f%s', batch_ends, math.max(0, batch_rows - asked), batch_era))
end
return reply
