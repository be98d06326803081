--- Reserve jobs for the batch of a checkpoint. Their receipts stay on the server.
--- KEYS     @queue checkpoint
--- ARGV     nonce fence batch most n tag owner lease
---          fence  '' = take the checkpoint over; else the number of this taking, the fence in the reply to the first call
---          batch  number of the batch, from 1; a number other than the stored one begins a new batch
---          most   the most jobs of the whole batch
---          n      0 to 1000: the most jobs that this call adds
---          tag, owner  as in reserve
---          lease  ms, at least 1; overrides the leases of the queue and of the job, except lease 0
--- BOUNDS   fence? 0 9007199254740991  batch 0 9007199254740991  most 0 9007199254740991  n 0 1000  tag 0 4095
--- META     v epoch seen off paused uses alarm full delivered
--- RETURNS  {1, nonce, fence, jobs, sealed, next, epoch, now, size}  jobs: in the batch so far; sealed: 1 = the batch is complete,
---                                               0 = call again, unless there are no jobs; next: as in reserve; size: bytes of the
---                                               records that this call added. If the queue does not exist, epoch is '', and fence
---                                               may be '', too
---          {-6, nonce, version}                 written by a newer protocol
---          {-8, nonce}                          damaged: jobs, but no meta; see configure
---          {-15, nonce, kind, owner, left}      a consumer has the exclusive role, for so many ms unless it is renewed
---          {-17, nonce, fence}                  another client has taken the checkpoint over
---          {-19, nonce, name, value}            malformed argument: owner or lease
--- FROM ready, scheduled, active  TO active, dead, none
--@include lib/checks/check_version
--@include lib/checks/check_owner
--@include lib/meta/now
--@include lib/checks/is_lease
if not is_lease(lease, 1) then
  return {-19, nonce, 'lease', string.sub(lease, 1, 200)}
end
local role, kind = '', 'consumer'
--@include lib/checks/check_role (gives: taken_by, left)
if taken_by then
  return {-15, nonce, kind, taken_by, left}
end
--@include lib/read/read_checkpoint (gives: current_batch, holder, is_sealed, batch_epoch, jobs)
if holder and fence ~= '' and tonumber(fence) < tonumber(holder) then
  return {-17, nonce, holder}
end
if not epoch then
  if redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  end
  return {1, nonce, fence, 0, 0, -1, '', now, 0}
end
if fence == '' then -- at least the time: so numbers rise also after the list has expired
  fence = string.format('%.0f', math.max(now, (tonumber(holder) or 0) + 1))
end
local anew = current_batch ~= batch or batch_epoch ~= epoch
if anew then
  jobs, is_sealed = 0, '0'
end
most, lease = tonumber(most), tonumber(lease)
n = is_sealed == '1' and 0 or math.min(tonumber(n), math.max(0, most - jobs))
--@include lib/finish/drop_bodies
--@include lib/finish/forget
--@include lib/finish/notify_ended
--@include lib/batches/count_members
--@include lib/dedup/release_dedup
local sweep_limit = 2000 -- most expired jobs that this call removes
--@include lib/results/keep_results
--@include lib/sweep/find_expired
local expired = find_expired(sweep_limit)
--@include lib/sweep/remove_expired
--@include lib/deliver/rate (gives: allowance)
--@include lib/deliver/wake_after_ends
local wake_empty, wants_room = redis.call('LLEN', wake) == 0, full > now and redis.call('LLEN', space) == 0
--@include lib/deliver/choose_jobs (gives: record_size)
--@include lib/deliver/prepare_delivery
--@include lib/deliver/write_delivery
--@include lib/deliver/next_event
local delivery = choose_jobs(math.min(n, allowance or n), expired, {}, false) -- no job ends in this call
prepare_delivery(delivery, lease, true, false)
local wrote, successor_due = write_delivery(delivery, expired, sweep_limit)
if not wrote then
  redis.call('HDEL', held, '-')
end
local taken, took = delivery.ids, #delivery.ids
local next_in = next_event(delivery, took, n, false, true, successor_due)
if wants_room and took + #expired.ids > 0 then
  redis.call('RPUSH', space, '1')
end
jobs = jobs + took
local sealed = (is_sealed == '1' or jobs >= most or jobs > 0 and next_in ~= 0) and 1 or 0
local mark, suffix = batch .. ' ' .. fence .. ' ' .. sealed .. ' ' .. epoch, string.format('-%03x', tag)
local size = 0
for i = 1, #taken do
  size = size + (record_size(taken[i], delivery.records[i]) or 0)
  taken[i] = taken[i] .. ' ' .. (string.match(delivery.counts[i], '^%d+') or '1') .. suffix
end
if anew then
  redis.call('DEL', checkpoint)
  redis.call('RPUSH', checkpoint, mark)
else
  redis.call('LSET', checkpoint, 0, mark)
end
if #taken > 0 then
  redis.call('RPUSH', checkpoint, unpack(taken))
end
redis.call('PEXPIRE', checkpoint, string.format('%.0f', math.max(604800000, lease * 2)))
return {1, nonce, fence, jobs, sealed, next_in, epoch, now, size}
