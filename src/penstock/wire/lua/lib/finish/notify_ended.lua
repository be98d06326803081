-- notify_ended(ids) is called for jobs that have ended. It gives back their tickets (protocol/keys.md), and tells the
-- clients that wait for their results: it removes the marks of awaited jobs from expiry, and adds one entry to finished
-- (protocol/results.md, Reading and waiting). Call it behind the first write, as a full server must not refuse it. When no
-- mark is left it drops `awaited` of `uses`.
--- KEYS   held active scheduled once expiry finished meta wake parked tickets turns paces holds
--- NEEDS  has_urgent uses now seen nothing
--- SETS   uses
--- GIVES  keyed notify_ended
--@include lib/keyed/keyed
local notify_ended = keyed and keyed.give_back or nothing
if uses_any('awaited') then
  local awaited_from = 4503599627370496 -- 2^52: scores of marks stand above those of results
  redis.call('XLEN', finished) -- check its type before the first write
  --@include lib/results/drop_marks
  --@include lib/finish/add_entry
  notify_ended = function(ids)
    if #ids == 0 then
      return
    end
    if keyed then
      keyed.give_back(ids)
    end
    local count, ended = drop_marks(100), {}
    if count > 0 and count < #ids then
      local marks, is_awaited = redis.call('ZRANGE', expiry, awaited_from, '+inf', 'BYSCORE'), {}
      for i = 1, #marks do
        is_awaited[string.sub(marks[i], 2)] = true
      end
      for i = 1, #ids do
        ended[#ended + 1] = is_awaited[ids[i]] and ids[i] or nil
      end
    elseif count > 0 then
      local marks = {}
      for i = 1, #ids do
        marks[i] = '?' .. ids[i]
      end
      local scores = redis.call('ZMSCORE', expiry, unpack(marks))
      for i = 1, #ids do
        ended[#ended + 1] = scores[i] and ids[i] or nil
      end
    end
    for i = 1, #ended do
      redis.call('ZREM', expiry, '?' .. ended[i], '!' .. ended[i])
    end
    if #ended > 0 then
      add_entry(table.concat(ended, ' '))
    end
  end
end
