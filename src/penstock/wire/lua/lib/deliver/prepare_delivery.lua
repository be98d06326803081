-- Compute scores, notes and counters for the jobs that choose_jobs took. `provisional`: notes of suspects get a
-- question mark. The last checks of types are here.
--- NEEDS  once dead tally taken now owner provisional score_of lease tag soonest taken_records lease_and_ttl
---        lease_span taken_counts change delivered dying uses has_dedup release_dedup cancelled marks put_back
--- SETS   soonest uses
--- GIVES  active_pairs once_pairs new_counters held_pairs
local active_pairs, once_pairs, new_counters, held_pairs = {}, {}, {}, {}
--@include lib/deliver/is_suspect
--@include lib/meta/use
if #taken > 0 then
  local fmt, byte = string.format, string.byte
  local note = '@' .. fmt('%.0f', now) .. ' ' .. owner .. '\n'
  local doubted = provisional and string.gsub(note, ' ', '? ', 1)
  local plain = fmt('%.0f', score_of(now + lease, tag))
  local at, usual = 1, false
  local head, own, ttl, last, written = nil, nil, nil, nil, nil
  soonest = math.huge
  for i = 1, #taken do
    local id, record = taken[i], taken_records[i]
    local third, score = byte(record, 3), plain
    if third == 108 or third == 116 then
      if not head or string.sub(record, 1, #head) ~= head then -- mostly equal to the job before
        head = string.match(record, '^.[;lt=%d]*[^;lt=%d]') -- the fields l and t, and one character
        own, ttl = lease_and_ttl(record)
      end
      local stop = ttl and math.min(now, tonumber(string.sub(id, 1, -12))) + ttl
      if own == 0 then
        score = nil
        once_pairs[#once_pairs + 1] = fmt('%.0f', score_of(stop or now + 86400000, tag))
        once_pairs[#once_pairs + 1] = id
      else
        local till = math.min(now + lease_span(own, ttl, lease), stop or math.huge)
        if till ~= last then
          last, written = till, fmt('%.0f', score_of(till, tag))
          soonest = math.min(soonest, till)
        end
        score = written
      end
    else
      usual = true
    end
    if score then
      active_pairs[at], active_pairs[at + 1] = score, id
      at = at + 2
    end
    held_pairs[i * 2 - 1] = id
    held_pairs[i * 2] = (doubted and is_suspect(taken_counts[i]) and doubted or note) .. record
    if taken_counts[i] ~= '' then
      new_counters[#new_counters + 1] = id
      new_counters[#new_counters + 1] = taken_counts[i]
    end
  end
  if usual then
    soonest = math.min(soonest, now + lease)
  end
  soonest = soonest < math.huge and soonest
  if #once_pairs > 0 then
    redis.call('ZCARD', once)
    use('once')
  end
  change('delivered', (delivered or 0) + #taken)
end
for i = 1, #put_back, 2 do
  new_counters[#new_counters + 1], new_counters[#new_counters + 2] = put_back[i], put_back[i + 1]
end
if #new_counters + #dying + #cancelled > 0 then
  redis.call('HLEN', tally)
  redis.call('ZCARD', dead)
  use('counters')
end
if #marks > 0 then
  use('marks')
end
local starts = uses_any('until_start')
if has_dedup and (starts or #dying + #cancelled > 0) then
  local ending = {unpack(cancelled)}
  for i = 1, #dying, 2 do
    ending[#ending + 1] = dying[i]
  end
  for i = 1, starts and #taken or 0 do -- ids that are taken until the start, perhaps since an update
    if string.find(string.match(taken_records[i], '^[^\n]*'), ';u=s', 1, true) then
      ending[#ending + 1] = taken[i]
    end
  end
  release_dedup(ending, false)
end
