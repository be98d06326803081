-- What take chose, as it will be written: scores, notes, counters. Needs provisional: whether the notes of suspects get a question
-- mark. The last of the checks: no key has another type.
--- NEEDS  once dead tally numbers now owner provisional score_of lease tag soonest records terms span_of counts change
---        delivered fallen uses has_dedup release_dedup
--- SETS   soonest uses
--- GIVES  scored onces recount sets
local scored, onces, recount, sets = {}, {}, {}, {}
--@include lib/suspected
--@include lib/use
if #numbers > 0 then
  local fmt, byte = string.format, string.byte
  local note = '@' .. fmt('%.0f', now) .. ' ' .. owner .. '\n'
  local doubted = provisional and string.gsub(note, ' ', '? ', 1)
  local plain = fmt('%.0f', score_of(now + lease, tag))
  local at, usual = 1, false
  local head, own, ttl, last, written = nil, nil, nil, nil, nil
  soonest = math.huge
  for i = 1, #numbers do
    local id, record = numbers[i], records[i]
    local third, score = byte(record, 3), plain
    if third == 108 or third == 116 then
      if not head or string.sub(record, 1, #head) ~= head then -- mostly the same as that of the job before
        head = string.match(record, '^.[;lt=%d]*[^;lt=%d]') -- the fields l and t, and one character
        own, ttl = terms(record)
      end
      local stop = ttl and math.min(now, tonumber(string.sub(id, 1, -12))) + ttl
      if own == 0 then
        score = nil
        onces[#onces + 1] = fmt('%.0f', score_of(stop or now + 86400000, tag))
        onces[#onces + 1] = id
      else
        local till = math.min(now + span_of(own, ttl, lease), stop or math.huge)
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
      scored[at], scored[at + 1] = score, id
      at = at + 2
    end
    sets[i * 2 - 1] = id
    sets[i * 2] = (doubted and suspected(counts[i]) and doubted or note) .. record
    if counts[i] ~= '' then
      recount[#recount + 1] = id
      recount[#recount + 1] = counts[i]
    end
  end
  if usual then
    soonest = math.min(soonest, now + lease)
  end
  soonest = soonest < math.huge and soonest
  if #onces > 0 then
    redis.call('ZCARD', once)
    use('o')
  end
  change('delivered', (delivered or 0) + #numbers)
end
if #recount > 0 or #fallen > 0 then
  redis.call('HLEN', tally)
  redis.call('ZCARD', dead)
  use('r')
end
local starts = string.find(uses, 's', 1, true)
if has_dedup and (starts or #fallen > 0) then
  local ending = {}
  for i = 1, #fallen, 2 do
    ending[#ending + 1] = fallen[i]
  end
  for i = 1, starts and #numbers or 0 do -- an id that is taken until its job is started, perhaps by an update since its last start
    if string.find(string.match(records[i], '^[^\n]*'), ';u=s', 1, true) then
      ending[#ending + 1] = numbers[i]
    end
  end
  release_dedup(ending, false)
end
