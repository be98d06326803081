--- Give jobs back without a failure: no attempt is charged, the next delivery is a new one.
--- KEYS     held active scheduled once dead tally expiry meta wake ready dedup windows
--- ARGV     nonce wanted common delay [number...]
---          delay   ms until it may be delivered again; 0 = at once and before younger jobs (counted: the queue's
---                  max_releases, 1000, ends a loop of them with a dead letter)
---          wanted, common, number   as in nack
--- META     v epoch uses seen off paused alarm max_releases
--- RETURNS  {1, nonce, done}              all of them
---          {1, nonce, done, code...}     codes as in nack
---          {-6, nonce, version}          written by a newer protocol
---          {-8, nonce}                   damaged: jobs, but no meta; see configure
---          {-9, nonce, epoch}            another epoch
---          {-19, nonce, name, value}     malformed argument: number
--- FROM active  TO scheduled, dead
--@include lib/version
--@include lib/epoch
--@include lib/now
--@include lib/limit
local most, later = limit(max_releases, 1000), tonumber(delay)
--@include lib/settled
--@include lib/aside
--@include lib/listed
local back, fallen, recount, valid = {}, {}, {}, 0
for i = 1, count do
  if codes[i] == 1 and where[i] == 'once' then
    codes[i] = -2
  elseif codes[i] == 1 then
    local id = ids[i]
    local d, nacked, c, r, why = string.match(counts[i] or '1 0 0 0', '^(%d+%+?) (%d+) (%d+) (%d+)(.*)$')
    valid = valid + 1
    if not receipts[i] then
      d = aside(d)
    end
    if later == 0 then
      r = r + 1
    end
    if tonumber(r) >= most then
      codes[i] = 3
      fallen[#fallen + 1] = id
      why = ' released ' .. r .. ' times'
    else
      back[#back + 1] = id
      back[#back + 1] = later == 0 and math.min(now, tonumber(string.sub(id, 1, -12))) or now + later
    end
    recount[#recount + 1] = id
    recount[#recount + 1] = d .. ' ' .. nacked .. ' ' .. c .. ' ' .. r .. why
  end
end
--@include lib/placing
--@include lib/putback
if valid > 0 then
  redis.call('HINCRBY', meta, 'released', valid)
end
if #fallen == 0 and valid == count then
  return {1, nonce, valid}
end
return {1, nonce, valid, unpack(codes)}
