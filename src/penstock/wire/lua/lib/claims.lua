-- Dedup ids of jobs that end here: each is freed, or goes to the job that waits for this end, or stays taken for its window.
-- bequeath(numbers, done, window) only looks; lib/bequests writes. A window stands instead of those in the records. An id's
-- value: `number`, `number heir`, `number heir due`, `number @end` (a job that waits for the end of a window) or `@end`. Keys are looked at here,
-- before anything is written, and only those that matter.
--- NEEDS  ready held scheduled expiry wake dedup windows uses now
--- GIVES  heirs open known touched loose bequeath heir_asleep drop_bodies large owed room
--@include lib/bodies
local heirs, open, known, touched, loose, bequeath, heir_asleep = nil, nil, nil, nil, nil, nil, false
if string.find(uses, 'd', 1, true) then
  heirs, open, known, touched, loose = {}, {}, {}, {}, {}
  local spans, stops = {[''] = 0}, {} -- of what jobs mostly have in common
  bequeath = function(numbers, done, window)
    if #numbers == 0 then
      return
    end
    local values, named, rests, all = redis.call('HMGET', held, unpack(numbers)), {}, {}, numbers
    local match, n = string.match, 0
    for i = 1, #numbers do
      local value = values[i]
      if not value then
        local entry = redis.call('XRANGE', ready, numbers[i], numbers[i])[1]
        value = entry and entry[2][2] or ''
      end
      local name, rest = match(value, '^@[^\n]*\n[1+];d=([^;\n]+)([^\n]*)')
      if not name then
        name, rest = match(match(value, '^@[^\n]*\n([^\n]*)') or match(value, '^[^\n]*'), ';d=([^;]+)(.*)')
      end
      if name then
        n = n + 1
        named[n], rests[n] = name, rest
        if all ~= numbers then
          all[n] = numbers[i]
        end
      elseif all == numbers then -- from here on the numbers of the named are kept apart
        all = {unpack(numbers, 1, i - 1)}
      end
    end
    local owners = #named > 0 and redis.call('HMGET', dedup, unpack(named)) or {}
    for j = 1, #named do
      local name, number = named[j], all[j]
      local value = known[name] or owners[j]
      local span = done and window or 0
      if done and not window then
        span = spans[rests[j]] or tonumber(match(rests[j], ';w=(%d+)') or 0)
        spans[rests[j]] = span
      end
      span = span > 0 and span
      local stop = span and (stops[span] or string.format('%.0f', now + span))
      if span then
        stops[span] = stop
      end
      if value == number and not known[name] then -- mostly
        if span then
          known[name] = '@' .. stop
          touched[#touched + 1] = name
          open[#open + 1] = stop
          open[#open + 1] = name
        else
          loose[#loose + 1] = name
        end
      elseif value then
        touched[#touched + 1] = name
        local owner, heir, wait = string.match(value, '^(%d+%-%d+) ?([%d-]*) ?(%d*)')
        if owner == number and heir ~= '' then
          known[name] = heir .. (span and ' @' .. stop or '')
          heirs[#heirs + 1] = heir
          local at = span and now + span or math.min(now, tonumber(string.sub(heir, 1, -12)))
          heirs[#heirs + 1] = math.max(at, tonumber(wait) or 0)
        elseif owner == number then
          local ends = tonumber(string.match(value, '@(%d+)$')) or 0 -- it waited for the end of a window
          known[name] = span and '@' .. stop or ends > now and string.format('@%.0f', ends) or ''
        elseif heir == number then
          known[name] = owner
        end
        if span and owner == number then
          open[#open + 1] = stop
          open[#open + 1] = name
        end
      end
    end
    if #heirs > 0 then
      redis.call('ZCARD', scheduled)
      redis.call('ZCARD', expiry)
      heir_asleep = redis.call('LLEN', wake) == 0
    end
    if #open > 0 then
      redis.call('ZCARD', windows)
    end
  end
end
