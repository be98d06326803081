--- Read a page of all jobs of a queue, in no order: first the stream, then the held jobs.
--- KEYS     @queue
--- ARGV     nonce cursor count full [state...]
---          cursor  '0' at first, then that of the last reply, until it is '0' again
---          count   1 to 1000: about the number of jobs in the reply; the call reads at most ten times as many, and at most 1000
---          full    1 = with bodies, about 1 MiB of them; 0 = only the header of each record
---          state   ready, scheduled, parked, active, dead: only jobs in these states; none given = all
--- BOUNDS   count 1 1000
--- META     v epoch seen off lease last uses
--- RETURNS  {1, nonce, now, lease, epoch, cursor, job...}  job as in show; behind its marks only why a parked job
---                               waits. Jobs whose ttl has ended are left out
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now
--@include lib/read/job_fields (gives: with_body)
--@include lib/read/state_of
--@include lib/read/tell_wait
local wanted, most = {}, tonumber(count)
local sweep_limit = math.min(most * 10, 1000)
for i = 1, #states do
  wanted[states[i]] = true
end
local reply, found, looked, bytes = {1, nonce, now, lease, epoch or '', '0'}, 0, 0, 0
local function see(id, state, score, value)
  looked, bytes = looked + 1, bytes + #value
  if #states == 0 or wanted[state == 'once' and 'active' or state] then
    local job = job_fields(id, state, score, value)
    if job[2] ~= 'expired' then
      found = found + 1
      if state == 'parked' then
        tell_wait(job)
      end
      if full == '1' then
        bytes = bytes - #job[7] + #with_body(job)[7]
      else
        job[7] = '1' .. (string.match(job[7], '^.([^\n]*\n)') or '')
      end
      reply[#reply + 1] = job
    end
  end
end
local function step()
  local bytes_left = math.min(most - found, sweep_limit - looked)
  local size = looked > 0 and bytes / looked or 1048575
  return math.max(1, math.min(bytes_left, math.floor((1048576 - bytes) / (size + 1)), 100))
end
local function unfinished()
  return found < most and looked < sweep_limit and bytes < 1048576
end
local where, at = string.match(cursor, '^([rh])(.*)$')
local fence = last or '+' -- jobs that are added meanwhile are left out, so a scan beside a producer ends
if where == 'r' then
  at, fence = string.match(at, '^(.*):(.*)$')
elseif not where then
  where, at = 'r', '-'
end
if where == 'r' and #states > 0 and not wanted.ready then
  where, at = 'h', '0'
end
while where == 'r' and unfinished() do
  local n = step()
  local entries = redis.call('XRANGE', ready, at, fence, 'COUNT', n)
  local seen_to = 0
  for i = 1, #entries do
    if bytes >= 1048576 then
      break
    end
    see(entries[i][1], 'ready', string.sub(entries[i][1], 1, -12), entries[i][2][2])
    seen_to = i
  end
  if seen_to < n and seen_to == #entries then
    where, at = 'h', '0'
  else
    --@include lib/read/number_after
    at = number_after(entries[seen_to][1])
  end
end
local over = false
while where == 'h' and not over and unfinished() do
  local page = redis.call('HSCAN', held, at, 'COUNT', math.min(step(), 10)) -- it can't stop midway
  at, over, looked = page[1], page[1] == '0', looked + 1 -- a page may be empty
  for i = 1, #page[2], 2 do
    local id, value = page[2][i], page[2][i + 1]
    if string.byte(id) == 61 or string.byte(id) == 62 then -- a large body or a kept result
      looked, bytes = looked + 1, bytes + #value
    else
      local state, score = state_of(id)
      see(id, state, score, value)
    end
  end
end
if not over then
  reply[6] = where .. at .. (where == 'r' and ':' .. fence or '')
end
return reply
