-- Read the clock of a queue that follows the server's: now_ms has its 13 digits, `since` is the time since `seen`. A
-- clock with an offset, or one that has gone back (since < 0), needs the include `clock`.
--- NEEDS  seen
--- GIVES  time now_ms since
local time = redis.call('TIME')
local now_ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
local since = now_ms - seen
