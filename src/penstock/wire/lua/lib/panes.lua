-- Windows that have ended, at most `reach` a call (lib/lapsed): their ids are free, or are those of the jobs that waited for the end.
--- NEEDS  dedup windows uses now reach
--- GIVES  panes shut kept_by
local panes, shut, kept_by = {}, {}, {}
if string.find(uses, 'd', 1, true) then
  panes = redis.call('ZRANGE', windows, '-inf', now, 'BYSCORE', 'LIMIT', 0, reach)
  local values = #panes > 0 and redis.call('HMGET', dedup, unpack(panes)) or {}
  for i = 1, #panes do
    local number, ends = string.match(values[i] or '', '^(%S*) ?@(%d+)$')
    if ends and tonumber(ends) <= now then
      if number == '' then
        shut[#shut + 1] = panes[i]
      else
        kept_by[#kept_by + 1] = panes[i]
        kept_by[#kept_by + 1] = number
      end
    end
  end
end
