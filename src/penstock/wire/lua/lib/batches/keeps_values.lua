-- keeps_values(callback) returns 1 if the values of a batch's members are kept until the callback has ended (protocol/batches.md, Values).
-- New members whose record has no `k` get 1 then, so that their consumers send the values.
--- KEYS   tally
--- NEEDS  uses
--- GIVES  keeps_values
local function keeps_values(callback)
  return callback and uses_any('notes') and redis.call('HEXISTS', tally, 'nb' .. callback) or 0
end
