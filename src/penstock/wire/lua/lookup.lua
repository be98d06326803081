--- Find the job that has a dedup id. Nothing changes.
--- KEYS     @queue
--- ARGV     nonce name
---          name  the dedup id, escaped as in a record
--- META     v epoch seen off lease uses
--- RETURNS  {1, nonce, now, lease, epoch, ends, job...}  ends: end of its window, 0 = none is open; job as in show: the job
---                               that has the id, then its successor; none = the id is free
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
--@include lib/checks/check_version
--@include lib/checks/check_damaged
--@include lib/meta/now
--@include lib/read/describe
local value = redis.call('HGET', dedup, name) or ''
local ends = tonumber(string.match(value, '@(%d+)$')) or 0
local reply = {1, nonce, now, lease, epoch or '', ends > now and string.format('%.0f', ends) or '0'}
for id in string.gmatch(value, '%d+%-%d+') do
  local job = describe(id)
  if #job > 0 and job[2] ~= 'expired' then
    reply[#reply + 1] = job
  end
end
return reply
