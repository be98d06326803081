--- Read a page of the jobs of a checkpoint's batch that are still held under its receipts. Nothing changes.
--- KEYS     @queue checkpoint
--- ARGV     nonce batch start count full
---          batch  number of the batch
---          start  the number of jobs to skip
---          count  1 to 1000; a reply has about 1 MiB, and at least one job
---          full   2 = with their bodies; 1 = with the note of the delivery and the header of the record; 0 = without
--- BOUNDS   batch 0 9007199254740991  start 0 9007199254740991  count 1 1000
--- META     v epoch uses seen off
--- RETURNS  {1, nonce, now, epoch, next, jobs: (number, score, counters, value)...}  next: start of the next page, at most start + count;
---                                        score: end of the lease (at most once: of the ttl) and tag, as in the index;
---                                        counters '' = first delivery; value: note, record
---          {0, nonce, batch}             the checkpoint has this other batch; '' = none
---          {-6, nonce, version}          written by a newer protocol
---          {-19, nonce, name, value}     malformed argument
--@include lib/checks/check_version
--@include lib/meta/now
--@include lib/read/read_checkpoint (gives: current_batch, batch_epoch)
if current_batch ~= batch or batch_epoch ~= epoch then
  return {0, nonce, current_batch and batch_epoch == epoch and current_batch or ''}
end
local reply = {1, nonce, now, batch_epoch, start + 0}
--@include lib/read/append_rows (gives: at)
local listed = redis.call('LRANGE', checkpoint, start + 1, start + count)
local named, receipts = {}, {}
for i = 1, #listed do
  named[i], receipts[i] = string.match(listed[i], '^(%S+) (%S+)$')
end
local found = #named > 0 and redis.call('ZMSCORE', active, unpack(named)) or {}
local tallied = #named > 0 and uses_any('counters') and redis.call('HMGET', tally, unpack(named)) or {}
local ids, scores, counts, places = {}, {}, {}, {}
local firsts, rare = {}, uses_any('once') -- the receipt of a first delivery, for each score
for i = 1, #named do
  local score = found[i] or rare and redis.call('ZSCORE', once, named[i])
  local receipt = score and firsts[score]
  if score and not receipt then
    receipt = '1' .. string.format('-%03x', score % 4096)
    firsts[score] = receipt
  end
  if tallied[i] and score then
    receipt = string.match(tallied[i], '^%d+') .. string.sub(receipt, 2)
  end
  if score and receipt == receipts[i] then
    local at = #ids + 1
    ids[at], scores[at], counts[at], places[at] = named[i], score, tallied[i], i
  end
end
local passed = append_rows(ids, scores, counts)
reply[5] = start + (passed < #ids and places[passed + 1] - 1 or #named)
return reply
