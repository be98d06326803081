-- Exclusive roles: whoever bears one must have it still, and its lease begins anew; while somebody has it nobody else does its
-- work: taken_by; whose role has ended has lost it. Needs role (of ARGV) and kind. (protocol/roles.md, Exclusive roles)
--- NEEDS  meta role uses kind change now
--- GIVES  taken_by left lost
local taken_by, left, lost = nil, 0, false
--@include lib/left
if role ~= '' or uses ~= '' and string.find(uses, 'x', 1, true) then
  local id, ends, span, who = string.match(redis.call('HGET', meta, kind) or '', '^(%S+) (%d+) (%d+) (.*)$')
  left = left_of(ends, span)
  lost = role ~= '' and (role ~= id or left <= 0)
  if role ~= '' and not lost then
    change(kind, id .. ' ' .. string.format('%.0f', now + span) .. ' ' .. span .. ' ' .. who)
  elseif role == '' and left > 0 then
    taken_by = who
  end
end
