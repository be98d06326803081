-- Check before the first write that the bound is a number and that the counters can be increased.
--- NEEDS  nonce limit messages bytes
--- GIVES  most
local most = tonumber(limit)
if not most then
  return {-8, nonce}
end
for _, counter in ipairs({messages, bytes}) do
  local sum = redis.call('GET', counter)
  if sum and (#sum > 18 or not string.match(sum, '^%d+$')) then
    return {-8, nonce}
  end
end
