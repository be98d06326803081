--- Everything about jobs, by number; nothing changes.
--- KEYS     ready held active scheduled once dead tally expiry meta
--- ARGV     nonce wanted [number...]
---          number  1 to 100
--- RETURNS  {1, nonce, now, lease, epoch, job...}  job: {} gone, else {number, state, score, delivered, owner, counters, record};
---                                        state: ready, scheduled, active, once, dead, expired, or dangling = in no index,
---                                        damaged; score: due time, end of lease, time of death; delivered and owner: of
---                                        the last delivery
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
local m = redis.call('HMGET', meta, 'v', 'epoch', 'seen', 'off', 'lease')
--@include lib/version
--@include lib/epoch
local changes, seen, off = {}, tonumber(m[3]) or 0, tonumber(m[4]) or 0
--@include lib/now
--@include lib/facts
local reply = {1, nonce, now, tonumber(m[5]) or 30000, m[2] or ''}
for i = 3, #ARGV do
  local id = ARGV[i]
  local value = redis.call('HGET', held, id)
  local job = {}
  if value then
    local score, state = nil, nil
    for name, index in pairs({active = active, scheduled = scheduled, once = once, dead = dead}) do
      local found = redis.call('ZSCORE', index, id)
      if found then
        score, state = tonumber(found), name
        if index == active or index == once then
          score = math.floor(score / 4096)
        end
      end
    end
    if state == 'scheduled' and score <= now then
      state = 'ready'
    end
    if state == 'active' and score <= now then
      state = 'ready'
    end
    if state == 'once' and score <= now then
      state = 'expired'
    end
    job = facts(id, state or 'dangling', score or 0, value)
  else
    local entry = redis.call('XRANGE', ready, id, id)[1]
    if entry then
      job = facts(id, 'ready', string.sub(id, 1, -12), entry[2][2])
    end
  end
  reply[#reply + 1] = job
end
return reply
