--- Look at deliveries whose handlers run, and store their progress and what they log.
--- KEYS     @queue
--- ARGV     nonce wanted common progress [number...]
---          progress  '' = none; else lines: the place of a job among the numbers, from 1, a blank, and its progress as in
---                    the mark `p`, without the time: at most 1024 bytes; or the place, +, and a line of its log, of
---                    which the last 100 are kept
---          wanted, common, number   as in extend
--- META     v epoch uses seen off
--- RETURNS  {1, nonce, now, code...}      for each: 1 goes on, 4 goes on, and is to be cancelled: end it by release, 6 goes on, and a
---                                        client watches the job: send its progress by emit, it is not stored, 0 gone,
---                                        -1 stale receipt, -2 not active, 2 ended before with this same receipt
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number or progress
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(common, numbers)
if refusal then
  return refusal
end
local count, ids, codes = checked.count, checked.ids, checked.codes
--@include lib/checks/code_each
code_each(checked, common, numbers)
--@include lib/read/is_watched
local watched, told, logged = is_watched(ids), {}, {}
for line in string.gmatch(progress, '[^\n]+') do
  local place, kind, text = string.match(line, '^(%d+)([ +])(.+)$')
  place = tonumber(place)
  if not ids[place or 0] or #text > 1024 then
    return {-19, nonce, 'progress', string.sub(line, 1, 200)}
  elseif codes[place] == 1 and kind == '+' then
    logged[place] = logged[place] or {}
    table.insert(logged[place], string.format('%.0f', now) .. ' ' .. text)
  elseif codes[place] == 1 and not watched[place] then
    told[#told + 1] = 'p' .. ids[place]
    told[#told + 1] = string.format('%.0f', now) .. ' ' .. text
  end
end
for place = 1, count do
  if logged[place] then
    local field, lines = 'l' .. ids[place], {}
    for line in string.gmatch(uses_any('marks') and redis.call('HGET', tally, field) or '', '[^\n]+') do
      lines[#lines + 1] = line
    end
    for _, line in ipairs(logged[place]) do
      lines[#lines + 1] = line
    end
    told[#told + 1] = field
    told[#told + 1] = table.concat(lines, '\n', math.max(1, #lines - 99))
  end
end
for i = 1, count do
  if watched[i] and codes[i] == 1 then
    codes[i] = 6
  end
end
if uses_any('marks') and count > 0 then
  local fields = {}
  for i = 1, count do
    fields[i] = 'c' .. ids[i]
  end
  local marked = redis.call('HMGET', tally, unpack(fields))
  for i = 1, count do
    if marked[i] and (codes[i] == 1 or codes[i] == 6) then
      codes[i] = 4
    end
  end
end
if #told > 0 then
  --@include lib/meta/use
  use('marks')
  redis.call('HDEL', held, '-') -- it passes on a full server
  redis.call('HSET', tally, unpack(told))
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
return {1, nonce, now, unpack(codes)}
