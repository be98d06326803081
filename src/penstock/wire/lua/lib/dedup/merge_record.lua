-- merge_record(record, old) returns the record of an update. It has the ttl and the key of the old one; and its lease, policy,
-- priority, handler after a death, time of keeping and window where the new one has none. nil = only one of the two has lease 0.
--- GIVES  merge_record
local merge_record
do
  local function kept_for(record)
    return string.match(record, '^[1+][;lt=%d]*;k=(%d+)') or string.match(record, '^[1+][;lt=%d]*;p=[^;\n]*;k=(%d+)')
  end
  local function merged_policy(record, old) -- with the priority
    local form = '^[1+][;lt=%d]*;p=([^,;\n]*),?([^,;\n]*),?([^,;\n]*),?([^,;\n]*),?([^,;\n]*)'
    local attempts, base, cap, priority, on_dead = string.match(record, form)
    local old_attempts, old_base, old_cap, old_priority, old_on_dead = string.match(old, form)
    if not attempts and not old_attempts then
      return ''
    elseif old_attempts and (not attempts or priority .. on_dead ~= '' and attempts .. base .. cap == '') then
      attempts, base, cap = old_attempts, old_base, old_cap
    end
    priority = priority and priority ~= '' and priority or old_priority or ''
    on_dead = on_dead and on_dead ~= '' and on_dead or old_on_dead or ''
    local tail = on_dead ~= '' and ',' .. priority .. ',' .. on_dead or priority ~= '' and ',' .. priority or ''
    return ';p=' .. attempts .. ',' .. base .. ',' .. cap .. tail
  end
  merge_record = function(record, old)
    local lease, old_lease = string.match(record, '^1;l=(%d+)'), string.match(old, '^[1+];l=(%d+)')
    if lease and (lease == '0') ~= (old_lease == '0') then
      return nil
    end
    local ttl = string.match(old, '^[1+][;l=%d]*;t=(%d+)')
    lease = lease or old_lease
    local keep = kept_for(record) or kept_for(old)
    local name, rest = string.match(record, '^1[^\n]-;d=([^;\n]+)(.*)$')
    local window, scope = string.match(rest, '^;w=(%d+)'), string.match(rest, '^[;w=%d]*;u=(%a)')
    rest = string.gsub(string.gsub(rest, '^;w=%d+', ''), '^;u=%a', '')
    local old_window = string.match(old, '^[1+][^\n]-;d=[^;\n]+([;wu=%w]*)') or ''
    window, scope = window or string.match(old_window, ';w=(%d+)'), scope or string.match(old_window, ';u=(%a)')
    local key = string.match(old, '^[^\n]-(;q=%x+)') or ''
    local front = '1' .. (lease and ';l=' .. lease or '') .. (ttl and ';t=' .. ttl or '') .. merged_policy(record, old)
    local behind_id = (window and ';w=' .. window or '') .. (scope and ';u=' .. scope or '') .. rest
    return front .. (keep and ';k=' .. keep or '') .. key .. ';d=' .. name .. behind_id
  end
end
