-- notify_returned(ids) tells the clients that watch jobs which a call has put back: it adds one entry to finished, and they look again.
-- Call it behind the first write.
--- KEYS   expiry finished
--- NEEDS  now uses
--- GIVES  notify_returned
--@include lib/read/is_watched
--@include lib/finish/add_entry
local function notify_returned(ids)
  local watched, told = is_watched(ids), {}
  for i = 1, #ids do
    told[#told + 1] = watched[i] and ids[i] or nil
  end
  if #told > 0 then
    add_entry(table.concat(told, ' '))
  end
end
