-- Write what lib/decide_dedup decided. Gives the reply.
--- NEEDS  ready held active scheduled once tally expiry meta wake space dedup windows nonce orphans mortal lives usual n
---        ids marks names apart given bodies whose forms dues fresh rewritten notes ruled moved drop_bodies recount mode
---        now paused first final last epoch created later replicas items header_of producer close_windows write_dedup
---        frames asleep full hungry waiting limit lapsed alarm change changes elsewhere enqueued front spent stood
---        unlisted uses
--- SETS   ruled first final alarm elsewhere uses
--- GIVES  reply
local stops, records, due, gone, soonest, token = {}, {}, {}, {}, nil, false
for id, at in pairs(orphans) do
  local ends = mortal and tonumber(redis.call('ZSCORE', expiry, id))
  local when = ends and math.min(ends, at) or at
  soonest = math.min(soonest or when, when)
  due[#due + 1] = string.format('%.0f', when)
  due[#due + 1] = id
end
for i = 2, lives and #lives or 0, 2 do
  stops[lives[i]] = tonumber(lives[i - 1])
end
if usual then
  local call = redis.call
  for i = 1, n do
    local id = ids[i]
    marks[i * 2 - 1], marks[i * 2] = names[i], id
    call('XADD', ready, id, 'j', apart(id, given[i], bodies))
  end
  token = true
end
for i = 1, usual and 0 or n do
  marks[#marks + 1] = whose[i]
  marks[#marks + 1] = forms[i] and string.format(forms[i], ids[i]) or ids[i]
  if dues[i] > 0 then
    local when = math.min(dues[i], stops[ids[i]] or dues[i])
    soonest = math.min(soonest or when, when)
    records[#records + 1] = ids[i]
    records[#records + 1] = apart(ids[i], fresh[i], bodies)
    due[#due + 1] = string.format('%.0f', when)
    due[#due + 1] = ids[i]
  else
    token = true
    redis.call('XADD', ready, ids[i], 'j', apart(ids[i], fresh[i], bodies))
  end
end
local shrunk = {} -- they have a new body, which does not lie apart
for id, content in pairs(rewritten) do
  records[#records + 1] = id
  local size = #bodies
  records[#records + 1] = notes[id] .. apart(id, content, bodies)
  if #bodies == size then
    shrunk[#shrunk + 1] = id
  end
  ruled = ruled or string.find(string.match(content, '^[^\n]*'), ';p=', 1, true)
  if moved[id] then
    local ends = mortal and tonumber(redis.call('ZSCORE', expiry, id))
    local when = ends and math.min(ends, moved[id]) or moved[id]
    soonest = math.min(soonest or when, when)
    gone[#gone + 1] = id
    due[#due + 1] = string.format('%.0f', when)
    due[#due + 1] = id
  end
end
if #records > 0 then
  redis.call('HSET', held, unpack(records))
end
if #bodies > 0 then
  redis.call('HSET', held, unpack(bodies))
end
drop_bodies(shrunk)
if #gone > 0 then
  redis.call('XDEL', ready, unpack(gone))
end
if #recount > 0 then
  redis.call('HSET', tally, unpack(recount))
end
--@include lib/use
if #recount > 0 then
  use('r')
end
if n > 0 then
  use('d')
end
if string.find(mode, 's', 1, true) then
  use('s')
end
--@include lib/announce
if soonest then
  token = soonest <= now or announce(soonest, false) or token
end
token = token and paused ~= 'out'
if n == 0 then
  first, final = '', last
end
--@include lib/note_added
local words = {}
local reply = {1, nonce, first, n, epoch, created, 0, later > 0 and 1 or 0, replicas}
for i = 1, #items, 2 do
  local what, id, state, header = unpack(items[i + 1])
  if tonumber(id) then -- a place among those that were added
    id, header = ids[id], header_of(fresh[id])
  end
  words[#words + 1] = items[i] .. ' ' .. what .. ' ' .. id .. ' ' .. state .. ' ' .. header .. '\n'
  local j = #reply
  reply[j + 1], reply[j + 2], reply[j + 3], reply[j + 4], reply[j + 5] = items[i], what, id, state, header
end
redis.call('SET', producer, nonce .. ' ' .. first .. ' ' .. n .. ' ' .. epoch .. (later > 0 and ' 1\n' or ' 0\n') ..
  table.concat(words), 'PX', 600000)
--@include lib/expire
close_windows()
local successor_due = write_dedup()
if #due > 0 then
  redis.call('ZADD', scheduled, unpack(due))
end
-- Who has the ids from now on, behind what has been released above.
if #marks > 0 then
  redis.call('HSET', dedup, unpack(marks))
end
if #frames > 0 then
  redis.call('ZADD', windows, unpack(frames))
end
if successor_due and successor_due <= now and paused ~= 'out' then
  token = true
end
if token and asleep then
  redis.call('RPUSH', wake, '1')
end
if full > now and hungry and (waiting + n < limit or #lapsed > 0) then
  redis.call('RPUSH', space, '1')
end
