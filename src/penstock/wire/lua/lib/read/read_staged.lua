-- Read the entry of the batch in the index of staged writes. Gives its name (the writer, a colon and the batch), and
-- what the entry has, nil if there is none: the end of its time, the number of its rows, and the rest, which is an era or empty.
--- KEYS   staged
--- NEEDS  stage
--- GIVES  batch_name batch_ends batch_rows batch_era
local batch_name = string.match(stage, '%w+:%d+$')
local batch_ends, batch_rows, batch_era = string.match(redis.call('HGET', staged, batch_name) or '', '^(%d+) (%d+)(.*)$')
