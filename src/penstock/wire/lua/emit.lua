--- Store what the handler of a delivery tells: its progress, and chunks, for the clients that watch the job.
--- KEYS     @queue emitted emitters
--- ARGV     nonce wanted receipt number span [head text...]
---          receipt  of the delivery that holds the job
---          span     ms for which the entries are kept, at most a day, also if no client watches the job; '' = they are dropped then
---          head     kind and index of an entry: `p` progress as in the mark `p`, without the time, at most 1024 bytes; `t` text, `j`
---                   JSON, at most 65536 bytes; `s` the delivery has begun, without a text. The index rises from 1 in a delivery;
---                    of `s` it is that of the entry before it, or 0
---          wanted, number   as in note
--- BOUNDS   span? 1 86400000
--- META     v epoch seen off uses
--- RETURNS  {1, nonce, outcome, watched, kept}  outcome: of the delivery, as in beat: 1 and 4 it goes on, 0, -1, -2, 2 it does not, and nothing
---                                        is stored; watched: 1 = a client watches the job; kept: 1 = the entries are stored, 0 = no client
---                                        watches, -1 = the server's memory is full, -2 = the queue has 1000 such streams
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number, receipt, head or text
--@include lib/checks/check_version
--@include lib/checks/check_epoch
--@include lib/meta/now (gives: changes)
if not string.find(receipt, '^%d+%-%x%x%x$') then
  return {-19, nonce, 'receipt', string.sub(receipt, 1, 200)}
end
--@include lib/checks/check_receipts
local refusal, checked = check_receipts(receipt, {number})
if refusal then
  return refusal
end
local progress
for i = 1, #heads, 2 do
  local kind, text = string.match(heads[i], '^([pstj])%d+$'), heads[i + 1]
  if not kind or #heads[i] > 16 then
    return {-19, nonce, 'head', string.sub(heads[i], 1, 200)}
  elseif not text or #text > (kind == 'p' and 1024 or 65536) or kind == 's' and text ~= '' then
    return {-19, nonce, 'text', string.sub(text or '', 1, 200)}
  elseif kind == 'p' then
    progress = text
  end
end
local outcome = checked.all_valid and 1 or checked.codes[1]
if outcome ~= 1 then
  return {1, nonce, outcome, 0, 0}
elseif uses_any('marks') and redis.call('HEXISTS', tally, 'c' .. number) == 1 then
  outcome = 4
end
--@include lib/read/is_watched
local watched, kept = is_watched({number})[1], 0
redis.call('HLEN', held) -- check the types before the first write
redis.call('HLEN', tally)
if #heads > 0 and (watched or span ~= '') then
  --@include lib/add/write_emitted
  kept = write_emitted(receipt, number, span, heads)
end
if progress then
  --@include lib/meta/use
  use('marks')
  redis.call('HDEL', held, '-') -- it passes on a full server
  redis.call('HSET', tally, 'p' .. number, string.format('%.0f', now) .. ' ' .. progress)
  if #changes > 0 then
    redis.call('HSET', meta, unpack(changes))
  end
end
return {1, nonce, outcome, watched and 1 or 0, kept}
