-- Exclusive roles (protocol/roles.md). A caller with the role renews its lease, or has `lost` it. Any other
-- caller learns the owner of the role (taken_by), and its ms (left).
--- KEYS   meta
--- NEEDS  role uses kind change now
--- GIVES  taken_by left lost
local taken_by, left, lost = nil, 0, false
--@include lib/checks/time_left
if role ~= '' or uses_any('roles') then
  local id, ends, span, holder = string.match(redis.call('HGET', meta, kind) or '', '^(%S+) (%d+) (%d+) (.*)$')
  left = time_left(ends, span)
  lost = role ~= '' and (role ~= id or left <= 0)
  if role ~= '' and not lost then
    change(kind, id .. ' ' .. string.format('%.0f', now + span) .. ' ' .. span .. ' ' .. holder)
  elseif role == '' and left > 0 then
    taken_by = holder
  end
end
