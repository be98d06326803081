-- find_job(id) returns the state, the record and the key of a job, read once a call; nil = the job is gone or expired.
-- notes[id] is the note of its last delivery.
--- KEYS   ready held active scheduled once expiry parked
--- NEEDS  uses now end_of
--- GIVES  notes find_job
local notes, jobs_found = {}, {}
local function look_up(id)
  local ends = uses_any('ttls') and redis.call('ZSCORE', expiry, id)
  if ends and tonumber(ends) <= now then
    return nil
  end
  local entry = redis.call('XRANGE', ready, id, id)[1]
  if entry then
    notes[id] = ''
    return 'ready', entry[2][2], ready
  end
  local value = redis.call('HGET', held, id)
  if not value then
    return nil
  end
  local note, record = string.match(value, '^(@[^\n]*\n)(.*)$')
  notes[id], record = note or '', record or value
  local score = redis.call('ZSCORE', active, id)
  if score then
    return end_of(score) > now and 'active' or 'ready', record, active
  end
  score = redis.call('ZSCORE', scheduled, id)
  if score then
    return tonumber(score) > now and 'scheduled' or 'ready', record, scheduled
  end
  if redis.call('ZSCORE', parked, id) then
    return 'parked', record, parked
  end
  score = redis.call('ZSCORE', once, id)
  if score and end_of(score) > now then
    return 'once', record, once
  end
end
local function find_job(id)
  jobs_found[id] = jobs_found[id] or {look_up(id)}
  return unpack(jobs_found[id], 1, 3)
end
