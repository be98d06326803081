-- describe(id) returns a job for a reader, with its body, its batch, and the receipt if a delivery has not ended, or why it is parked; {} = gone. Of a
-- job that has ended it returns the state, time and attempt that are kept.
--- KEYS   ready held active scheduled once dead tally expiry meta members batches parked tickets turns holds
--- NEEDS  end_of now uses
--- GIVES  describe
--@include lib/read/job_fields (gives: with_body)
--@include lib/read/state_of
--@include lib/read/tell_wait
--@include lib/read/read_kept
--@include lib/read/batch_of
--@include lib/read/lapsed (gives: abandoned_error)
-- The callback of a batch does not expire: it is dead if its batch was not closed in time. One that was promoted keeps its state.
local function correct_callback(job, state, lease_score)
  local ended = job[2] == 'expired' and lapsed(job[1], lease_score)
  if job[2] == 'expired' and ended ~= 'expired' then
    job[2] = ended or state
  end
  if ended == 'dead' then
    job[6] = '0 0 0 0 ' .. abandoned_error
  end
end
local function describe(id)
  local value = redis.call('HGET', held, id)
  if value then
    local state, at, lease_score = state_of(id)
    local job = with_body(job_fields(id, state, at, value, true))
    local ended = string.find(job[6], '^%d+%+')
    correct_callback(job, state, lease_score)
    job[12] = lease_score and not ended and (string.match(job[6], '^%d+') or '1') .. string.format('-%03x', lease_score % 4096) or ''
    if job[2] == 'parked' then
      tell_wait(job)
    end
    job[13] = batch_of(id)
    return job
  end
  local entry = redis.call('XRANGE', ready, id, id)[1]
  if not entry then
    local kept = read_kept(id) -- the body is gone
    return kept and {id, kept[1], kept[2], '0', '', kept[3] .. ' 0 0 0', '1\n', '', '', '', '', 'kept'} or {}
  end
  local job = with_body(job_fields(id, 'ready', string.sub(id, 1, -12), entry[2][2], true))
  correct_callback(job, 'ready')
  job[12], job[13] = '', batch_of(id)
  return job
end
