--- Set, change or drop settings of a queue, including its pause. They are stored with the queue, for all clients.
--- KEYS     @queue
--- ARGV     nonce create [field value...]
---          create  as in enqueue: a queue may be configured before its first job; or '!' and the epoch in the registry:
---                  meta was lost while jobs exist, create it again
---          field   closed (1), paused (in, out, all), lease, max_length, max_attempts, max_crashes, max_releases, max_snoozes,
---                  replicas, backoff_base, backoff_cap, unknown_age, dead_max, dead_age, results_max,
---                  results_bytes, result_size, result_ttl, rate, burst, per_key, share, ordered (1), key_rate, key_burst, max_active, history (0), longest_wait; value '' drops the setting.
---                  'configured' and ms: the settings were copied from another node, where they were set at that time; nothing changes if the
---                  settings here were set at that time or later
--- META     v epoch seen off full paused max_length replicas result_ttl uses configured per_key ordered share key_rate key_burst
--- RETURNS  {1, nonce, epoch, created, fields: (field, value)...}  stored; the fields of meta as they are now
---          {-5, nonce}                   no such queue: register it, then create
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta
---          {-19, nonce, name, value}     malformed argument: create; lease; value: of another setting, or of none; or ordered,
---                                        while jobs have priorities
--@include lib/checks/check_version
local created, drops = 0, {}
--@include lib/meta/now (gives: changes, change)
--@include lib/checks/is_lease
--@include lib/meta/all_fields
local function is_setting(field, value) -- '' drops a setting
  local words = ({paused = {['in'] = true, out = true, all = true}, closed = {['1'] = true}, ordered = {['1'] = true}, history = {['0'] = true}})[field]
  if words then
    return value == '' or words[value]
  elseif field == 'rate' then
    local count, period, parts = string.match(value, '^([1-9]%d*)/([1-9]%d*)(.*)$')
    return value == '' or count and count + 0 <= 1000000 and period + 0 <= 86400000 and (parts == '' or string.find(parts, '^/[1-9]%d?%d?$'))
  elseif field == 'key_rate' then
    local count, period = string.match(value, '^([1-9]%d*)/([1-9]%d*)$')
    return value == '' or count and count + 0 <= 1000000 and period + 0 <= 86400000
  end
  local span, whole = 3162240000000, 9007199254740991
  if field == 'max_active' then
    local count, parts = string.match(value, '^([1-9]%d*)(.*)$')
    return value == '' or count and count + 0 <= whole and (parts == '' or string.find(parts, '^/[1-9]%d?%d?$'))
  end
  local bounds = ({lease = {1, span}, backoff_base = {1, span}, backoff_cap = {1, span}, dead_age = {1, span}, unknown_age = {1, span}, longest_wait = {1, span}, result_ttl = {1, span},
    max_length = {1, whole}, burst = {1, 100000}, key_burst = {1, 100000}, per_key = {1, whole}, share = {1, whole}, max_attempts = {0, whole}, max_crashes = {0, whole},
    max_releases = {0, whole}, max_snoozes = {0, whole}, replicas = {0, whole}, dead_max = {0, whole}, results_max = {0, whole},
    results_bytes = {0, whole}, result_size = {0, whole}, configured = {0, whole}})[field]
  local is_whole = value == '0' or string.find(value, '^[1-9]%d*$')
  return bounds and (value == '' or is_whole and value + 0 >= bounds[1] and value + 0 <= bounds[2])
end
if not epoch then
  local anew = string.sub(create, 1, 1) == '!'
  if not anew and redis.call('EXISTS', ready, held) > 0 then
    return {-8, nonce}
  elseif create == '' then
    return {-5, nonce}
  end
  epoch, created, uses = anew and string.sub(create, 2) or create, 1, ''
  if anew then -- any structure may be there
    uses = letters('ttls counters once dedup until_start large_bodies policies results marks schedules priorities tickets batches key_holds notes')
  end
  --@include lib/checks/check_create
  --@include lib/meta/create_queue
  if anew then -- above every number in use: held jobs may have numbers of this ms, and higher ones than the stream
    change('v', '3')
    local ms = now
    local info = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'STREAM', ready) or {}
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then
        ms = math.max(ms, tonumber(string.match(info[i + 1], '^%d+')))
      end
    end
    change('last', string.format('%.0f-4294967294', ms))
    change('recheck', '0 0') -- the limits are lost, and jobs may be parked
  end
end
--@include lib/meta/use
local function has_key_rate()
  return (key_rate or '') ~= ''
end
local function tickets_allowed_per_key() -- at most; and without a turn, if the queue has a share, or a rate for each key
  local most = ordered == '1' and 1 or tonumber(per_key) or math.huge
  return most, has_key_rate() and 0 or ordered ~= '1' and tonumber(share) or nil
end
local closes, last, given, pace_before, most_before, share_before = false, configured, nil, has_key_rate(), tickets_allowed_per_key()
local pace_text_before = has_key_rate() and key_rate .. ' ' .. (key_burst or '') or ''
local limits = {paused = paused, max_length = max_length, replicas = replicas > 0, result_ttl = result_ttl}
for i = 1, #fields, 2 do
  local field, value = fields[i], fields[i + 1]
  if field == 'lease' and value ~= '' and not is_lease(value, 1) then
    return {-19, nonce, 'lease', string.sub(value, 1, 200)}
  elseif not is_setting(field, value) then
    return {-19, nonce, 'value', string.sub(field .. ' ' .. value, 1, 200)}
  end
  if field == 'configured' then
    given = math.floor(tonumber(value) or 0)
  elseif value == '' then
    drops[#drops + 1] = field
  else
    change(field, value)
  end
  if field == 'closed' then
    closes = value ~= ''
    uses = string.gsub(uses, letters('closed'), '') .. (closes and letters('closed') or '')
  elseif field == 'rate' then
    uses = string.gsub(uses, letters('rate'), '')
    if value == '' then
      drops[#drops + 1] = 'tat'
    else
      use('rate')
    end
  elseif field == 'max_active' then
    uses = string.gsub(uses, letters('max_active'), '')
    if value ~= '' then
      use('max_active')
    end
  elseif limits[field] ~= nil then
    limits[field] = value ~= '' and value ~= '0' and value
  elseif field == 'ordered' and value ~= '' and uses_any('priorities') then
    return {-19, nonce, 'ordered', value}
  elseif field == 'key_burst' then
    key_burst = value
  elseif field == 'per_key' or field == 'ordered' or field == 'share' or field == 'key_rate' then
    if value ~= '' then
      use('tickets')
    end
    per_key, ordered, share = field == 'per_key' and value or per_key, field == 'ordered' and value or ordered, field == 'share' and value or share
    key_rate = field == 'key_rate' and value or key_rate
  end
end
paused = limits.paused
local most_now, share_now = tickets_allowed_per_key()
local is_paced_anew = has_key_rate() and key_rate .. ' ' .. (key_burst or '') ~= pace_text_before
if most_now > most_before or (share_now or math.huge) > (share_before or math.huge) or share_now and not share_before or is_paced_anew then
  change('recheck', '0 0') -- parked jobs may have room now, or turns
end
if created == 0 and given and given <= last then
  return {1, nonce, epoch, created, unpack(all_fields())}
elseif #fields > 0 then
  local limited = paused or limits.max_length or limits.replicas or limits.result_ttl
  change('uses', string.gsub(uses, letters('limits'), '') .. (limited and letters('limits') or ''))
  change('configured', string.format('%.0f', given or math.max(now, last + 1)))
end
local drops_turns = not share_now and (share_before or created == 1)
local drops_paces = not has_key_rate() and (pace_before or created == 1)
if drops_turns then
  redis.call('ZCARD', turns)
end
if drops_paces then
  redis.call('ZCARD', paces)
end
local wake_empty, space_empty = redis.call('LLEN', wake) == 0, redis.call('LLEN', space) == 0
redis.call('HDEL', held, '-')
if drops_turns then
  redis.call('UNLINK', turns)
end
if drops_paces then
  redis.call('UNLINK', paces)
end
if #drops > 0 then
  redis.call('HDEL', meta, unpack(drops))
end
if #changes > 0 then
  redis.call('HSET', meta, unpack(changes))
end
-- Wake waiting clients: the queue may be resumed, closed and empty, or have more room or other leases.
local token = closes or paused ~= 'out' and paused ~= 'all'
if token and wake_empty then
  redis.call('RPUSH', wake, '1')
end
if space_empty and full > now then
  redis.call('RPUSH', space, '1')
end
return {1, nonce, epoch, created, unpack(all_fields())}
