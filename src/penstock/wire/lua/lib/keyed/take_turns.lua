-- take_turns(delivery, expired, search, most) fills up a delivery to `most` jobs with parked ones, whose keys have more tickets than their share:
-- the lowest ones of the keys that come first in turns, one job of each key, and another one of each if all keys are not enough. With a rate
-- for each key, only of those whose time has come. It looks at most + 100 keys at most, and goes on where the call before has stopped.
-- keyed.admit writes what it decides.
--- KEYS   parked tickets turns
--- NEEDS  count_delivery keyed now read_job screen
--- GIVES  take_turns
local looked = 0
-- The keys of these entries, key and time of each, whose time has come.
local function due_keys(entries)
  local hashes = {}
  for i = 1, #entries, 2 do
    local at = tonumber(entries[i + 1])
    if not keyed.pace or at <= now then
      hashes[#hashes + 1] = entries[i]
    elseif at > keyed.pace.latest then -- of a wrong clock, or of another rate
      keyed.look_at(entries[i], 0)
    end
  end
  return hashes
end
local function take_turns(delivery, expired, search, most)
  local call, bytes = redis.call, search.bytes
  local ids, records, counts, dropped = delivery.ids, delivery.records, delivery.counts, delivery.dropped
  while #ids < most and bytes < 1048576 and looked < most + 100 do
    local wanted = most - #ids
    local page, candidates = due_keys(call('ZRANGE', turns, looked, looked + wanted - 1, 'WITHSCORES')), {}
    local rounds = #page > 0 and math.ceil(wanted / #page) or 0
    looked = looked + #page
    for i = 1, #page do
      local hash = page[i]
      local room = keyed.hard_limit < math.huge and math.max(0, keyed.hard_limit - call('ZCOUNT', tickets, hash, hash)) or rounds
      local allowed = keyed.pace and keyed.pace.allowed(hash) or room
      candidates[i] = call('ZRANGE', parked, hash, hash, 'BYSCORE', 'LIMIT', '0', math.min(rounds, room, allowed))
      if expired.has_more then
        screen(candidates[i], expired)
      end
      keyed.note_turn(hash, nil, allowed == 0)
    end
    for round = 1, rounds do
      for i = 1, #page do
        local id = candidates[i][round]
        if id and #ids < most and bytes < 1048576 and not expired.left_out[id] then
          local record, size, count = read_job(id)
          if record then
            local place = #ids + 1
            ids[place], records[place], counts[place] = id, record, count and count_delivery(count) or ''
            bytes = bytes + size
            keyed.note_turn(page[i], id)
          else
            dropped[#dropped + 1] = id
          end
        end
      end
    end
    if #page < wanted then
      break
    end
  end
  search.bytes = bytes
end
