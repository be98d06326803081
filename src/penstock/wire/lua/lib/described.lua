-- A job as a reader sees it, wherever it is, with its body, and the receipt of a delivery that nobody has ended; {} = gone.
--- NEEDS  ready held active scheduled once dead tally expiry end_of now
--- GIVES  described
--@include lib/facts
--@include lib/state
local function described(id)
  local value = redis.call('HGET', held, id)
  if value then
    local state, at, lasting = state_of(id)
    local job = filled(facts(id, state, at, value))
    local ended = string.find(job[6], '^%d+%+')
    job[8] = lasting and not ended and (string.match(job[6], '^%d+') or '1') .. string.format('-%03x', lasting % 4096) or ''
    return job
  end
  local entry = redis.call('XRANGE', ready, id, id)[1]
  local job = entry and filled(facts(id, 'ready', string.sub(id, 1, -12), entry[2][2])) or {}
  job[8] = entry and ''
  return job
end
