-- prepare_delivery(delivery, lease, overrides, provisional) adds to a delivery what is written for its jobs: active_pairs, once_pairs,
-- held_pairs and new_counters; and soonest, the earliest end of their leases. `overrides`: the lease replaces the jobs' own, except 0;
-- `provisional`: notes of suspects get a question mark. The last checks of types are here.
--- KEYS   once dead tally expiry
--- NEEDS  change delivered has_dedup now owner release_dedup score_of tag uses
--- SETS   uses
--- GIVES  prepare_delivery
local function prepare_delivery(delivery, lease, overrides, provisional)
  local ids, records, counts, new_counters = delivery.ids, delivery.records, delivery.counts, {}
  local active_pairs, once_pairs, held_pairs, ended, ending = {}, {}, {}, delivery.ended, {}
  --@include lib/meta/use
  if #ids > 0 then
    --@include lib/deliver/lease_terms (gives: lease_and_ttl, lease_span)
    --@include lib/deliver/is_suspect
    local fmt, byte = string.format, string.byte
    local note = '@' .. fmt('%.0f', now) .. ' ' .. owner .. '\n'
    local doubted = provisional and string.gsub(note, ' ', '? ', 1)
    local plain = fmt('%.0f', score_of(now + lease, tag)) -- the score of jobs with neither lease nor ttl; usual: there is one
    local at, usual, soonest = 1, false, math.huge
    local head, own, ttl = nil, nil, nil -- of the last job with a lease or a ttl: the fields l and t, and one character; both as numbers
    local last_end, last_score = nil, nil -- the end of the last lease that was computed, and its score
    for i = 1, #ids do
      local id, record = ids[i], records[i]
      local third, score = byte(record, 3), plain
      if third == 108 or third == 116 then
        if not head or string.sub(record, 1, #head) ~= head then -- mostly equal to the job before
          head = string.match(record, '^.[;lt=%d]*[^;lt=%d]')
          own, ttl = lease_and_ttl(record)
          own = overrides and own ~= 0 and lease or own
        end
        local stop = ttl and math.min(now, tonumber(string.sub(id, 1, -12))) + ttl
        if own == 0 then
          score = nil
          once_pairs[#once_pairs + 1] = fmt('%.0f', score_of(stop or now + 86400000, tag))
          once_pairs[#once_pairs + 1] = id
        else
          local till = math.min(now + lease_span(own, ttl, lease), stop or math.huge)
          if till ~= last_end then
            last_end, last_score = till, fmt('%.0f', score_of(till, tag))
            soonest = math.min(soonest, till)
          end
          score = last_score
        end
      else
        usual = true
      end
      if score then
        active_pairs[at], active_pairs[at + 1] = score, id
        at = at + 2
      end
      held_pairs[i * 2 - 1] = id
      held_pairs[i * 2] = (doubted and is_suspect(counts[i]) and doubted or note) .. record
      if counts[i] ~= '' then
        new_counters[#new_counters + 1] = id
        new_counters[#new_counters + 1] = counts[i]
      end
    end
    if usual then
      soonest = math.min(soonest, now + lease)
    end
    delivery.soonest = soonest < math.huge and soonest
    if #once_pairs > 0 then
      redis.call('ZCARD', once)
      use('once')
      delivery.once_pairs = once_pairs
    end
    change('delivered', (delivered or 0) + #ids)
  end
  if ended then
    local dying, put_back = ended.dying, ended.to_park
    for i = 1, #put_back, 2 do
      new_counters[#new_counters + 1], new_counters[#new_counters + 2] = put_back[i], put_back[i + 1]
    end
    ending = {unpack(ended.cancelled)}
    for i = 1, #dying, 2 do
      ending[#ending + 1] = dying[i]
    end
  end
  if #new_counters + #ending + #delivery.dropped > 0 then
    redis.call('HLEN', tally)
    redis.call('ZCARD', dead)
    redis.call('ZCARD', expiry)
  end
  if #new_counters + #ending > 0 then
    use('counters')
  end
  if ended and #ended.marks > 0 then
    use('marks')
  end
  if has_dedup then
    local starts = uses_any('until_start')
    for i = 1, starts and #ids or 0 do -- ids that are taken until the start, perhaps since an update
      if string.find(string.match(records[i], '^[^\n]*'), ';u=s', 1, true) then
        ending[#ending + 1] = ids[i]
      end
    end
    release_dedup(ending, false)
  end
  delivery.active_pairs, delivery.held_pairs, delivery.new_counters = active_pairs, held_pairs, new_counters
end
