-- append_jobs(reply, delivery) adds the delivered jobs, three parts each: number, counters, record.
--- NEEDS  join_body
--- GIVES  append_jobs
local function append_jobs(reply, delivery)
  local at, ids, records, counts = #reply, delivery.ids, delivery.records, delivery.counts
  for i = 1, #ids do
    reply[at + 1], reply[at + 2], reply[at + 3] = ids[i], counts[i], join_body(ids[i], records[i])
    at = at + 3
  end
end
