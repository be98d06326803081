-- add_entry(text) adds an entry to finished. Its id is the queue's time, or the next one behind the last entry.
--- KEYS   finished
--- NEEDS  now
--- GIVES  add_entry
local function add_entry(text)
  local last = redis.call('XREVRANGE', finished, '+', '-', 'COUNT', 1)[1]
  local ms, seq = string.match(last and last[1] or '0-0', '^(%d+)-(%d+)$')
  local id = tonumber(ms) < now and string.format('%.0f-0', now) or string.format('%s-%.0f', ms, seq + 1)
  redis.call('XADD', finished, 'MAXLEN', '~', '1000', id, 'j', text)
  redis.call('PEXPIRE', finished, '60000')
end
