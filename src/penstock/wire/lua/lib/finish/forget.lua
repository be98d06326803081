-- forget(ids) removes the counters and the marks of jobs that end, and their places in urgent.
--- KEYS   urgent tally
--- NEEDS  uses
--- GIVES  has_urgent notes_left note_bytes_left forget
local has_urgent = uses_any('priorities')
if has_urgent then
  redis.call('ZCARD', urgent) -- check its type before the first write
end
local notes_left, note_bytes_left = 2000, 67108864 -- that the script may still remove
local forget
do
  --@include lib/finish/forget_marks
  forget = function(ids)
    redis.call('HDEL', tally, unpack(ids))
    forget_marks(ids)
    if has_urgent then
      redis.call('ZREM', urgent, unpack(ids))
    end
  end
end
