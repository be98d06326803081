-- follow_deaths(ids, cause) adds a job for each of these jobs, which have just become dead letters, if its record names a handler for that: the
-- fifth part of its field `p` (protocol/follow-ups.md). The sixth part gets the number of the added job. cause: of a callback that waits
-- for dead letters, in place of the error in its counters. Bodies above 4096 bytes have 1 MiB together at most in all calls of a script:
-- those beyond it are left out. The jobs are due now (fired), or parked behind others of their keys; a full server takes them.
--- KEYS   held scheduled tally meta
--- NEEDS  uses now nothing keyed
--- SETS   fired
--- GIVES  follow_deaths
local follow_deaths = nothing
if uses_any('policies') then
  redis.call('ZCARD', scheduled) -- check its type before the first write
  local match, sub, copied = string.match, string.sub, 0
  local form = '^([1+][;lt=%d]*;p=' .. string.rep('[^,;\n]*,', 4) .. '([^,;\n]+))([^;\n]*)([^\n]*)\n()'
  local function escape(text)
    return (string.gsub(text, '[%%;=\\%c\127-\255]', function(char)
      return string.format('%%%02X', string.byte(char))
    end))
  end
  follow_deaths = function(ids, cause)
    local values, counts, followed = redis.call('HMGET', held, unpack(ids)), redis.call('HMGET', tally, unpack(ids)), {}
    for i = 1, #ids do
      local value = values[i] or ''
      local at = match(value, '^@[^\n]*\n()') or 1
      local front, name, _, rest, body_at = match(value, form, at)
      if front then
        local count = cause and '0 0 0 0 ' .. cause or counts[i] or ''
        followed[#followed + 1] = {
          id = ids[i], note = sub(value, 1, at - 1), front = front, name = name, rest = rest, body = sub(value, body_at), count = count
        }
      end
    end
    if #followed == 0 then
      return
    end
    local nonce, seed, n, last = 1, tonumber(sub(followed[1].id, -8)), #followed, redis.call('HGET', meta, 'last')
    local now_ms = string.format('%.0f', math.max(now, 1000000000000))
    --@include lib/add/next_number
    --@include lib/add/number_list (gives: final, ids)
    for i = 1, n do
      local id, job = ids[i], followed[i]
      local version, body, own_body = sub(job.front, 1, 1), job.body, '=' .. job.id
      local size = version == '+' and redis.call('HSTRLEN', held, own_body) or #body
      local is_large = size > 4096
      local is_whole = not is_large or copied + size <= 1048576
      copied = is_whole and is_large and copied + size or copied
      if not is_whole then
        version, body = '1', ''
      elseif version == '+' then
        redis.call('HSET', held, '=' .. id, redis.call('HGET', held, own_body) or '')
      end
      local ttl, nacks, crashes, why = match(job.front, ';t=(%d+)'), match(job.count, '^%d+%+? (%d+) (%d+) %d+ ?(.*)$')
      local record = table.concat({
        version, match(job.rest, ';q=%x+') or '', is_whole and match(job.rest, ';c=[^;]*') or '', ';h.handler=', job.name, ';h.dead=', job.id,
        ttl and ' ' .. ttl or '', ';h.dead_handler=', match(job.rest, ';h%.handler=([^;]*)') or '', ';h.dead_failures=',
        string.format('%d', (nacks or 0) + (crashes or 0)), is_whole and '' or ';h.dead_bytes=' .. size, ';h.dead_error=', escape(why or ''), '\n', body
      })
      redis.call('HSET', held, id, record, job.id, job.note .. job.front .. ',' .. id .. job.rest .. '\n' .. job.body)
      if not keyed or keyed.take(id, record) then
        redis.call('ZADD', scheduled, string.format('%.0f', now), id)
        fired = now
      end
    end
    redis.call('HSET', meta, 'last', final)
    redis.call('HINCRBY', meta, 'enqueued', n)
  end
end
