--- Note a sleep as the next step of jobs, and give them back until it is over. Each later delivery passes the sleep. Or let jobs wait for a
--- signal.
--- KEYS     @queue
--- ARGV     nonce wanted common index name delay [number...]
---          index, name  of the note, as in note. A job whose next note has another place is given back at once, without a note.
---                  index 0: the jobs wait for a signal of this name. If its outcome is there, they are due at once. Jobs that have no room
---                  for a timeout, as they have 1,000 notes and timeouts, or 1 MiB, are given back at once, without a wait
---          delay   ms until the jobs may be delivered again, at most until the ends of their ttls; of a wait that goes on, from its begin
---          wanted, common, number   as in nack
--- BOUNDS   index 0 1000  delay 0 3162240000000
--- META     v epoch uses seen off paused alarm
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     codes as in nack
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number, index, name or delay
--- FROM active  TO scheduled, none
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now
if name == '' or #name > 200 or string.find(name, '%c') then
  return {-19, nonce, 'name', string.sub(name, 1, 200)}
end
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
--@include lib/checks/code_each
local has_receipt = code_each(checked, common, numbers)
--@include lib/return/return_jobs
--@include lib/meta/use
local fields = {}
local note = 's\t' .. string.format('%.0f', now) .. '\t' .. name .. '\t' .. delay
--@include lib/return/find_outcome
--@include lib/return/count_timeouts
local function can_wait(count, bytes, outcomes) -- there is room for a timeout; an outcome has 19 bytes or more
  return bytes + #name + 18 <= 1048576 and (count + #outcomes / 19 < 1000 or count + count_timeouts(outcomes) < 1000)
end
local function decide(id, nacked, crashed, released, why)
  local count, bytes, redriven, wait = string.match(redis.call('HGET', tally, 'n' .. id) or '0 0 0 0 -', '^(%d+) (%d+)( %d+ %d+) (.*)$')
  if index == '0' then
    local outcomes = redis.call('HGET', tally, 'n' .. id .. ':0') or ''
    if find_outcome(outcomes, string.match(redriven, '%d+$'), name) then
      return math.min(now, tonumber(string.sub(id, 1, -12))), '0 0 ' .. released .. why
    elseif can_wait(count, bytes, outcomes) then
      local begun, waits_for = string.match(wait, '^(%d+) (.*)$')
      local ends = math.min(now + delay, waits_for == name and tonumber(begun) or now + delay)
      use('notes')
      return ends, '0 0 ' .. released .. why, 'n', count .. ' ' .. bytes .. redriven .. string.format(' %.0f ', ends) .. name
    end
  elseif index + 0 == count + 1 and bytes + #note <= 1048576 then
    use('notes')
    fields[#fields + 1] = 'n' .. id .. ':' .. string.format('%.0f', index)
    fields[#fields + 1] = note
    return now + delay, '0 0 ' .. released .. why, 'n', string.format('%.0f %.0f', index, bytes + #note) .. redriven .. ' -'
  end
  -- A failover has lost notes: the next run makes them again. Or there is no room: the next run finds that.
  return math.min(now, tonumber(string.sub(id, 1, -12))), nacked .. ' ' .. crashed .. ' ' .. released .. why
end
local reply = return_jobs(checked, has_receipt, decide, false, 'released')
if #fields > 0 then
  redis.call('HSET', tally, unpack(fields))
end
return reply
