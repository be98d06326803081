-- append_jobs(reply) adds the jobs that were taken, three parts each: number, counters, record.
--- NEEDS  taken taken_counts join_body taken_records
--- GIVES  append_jobs
local function append_jobs(reply)
  local at = #reply
  for i = 1, #taken do
    reply[at + 1], reply[at + 2], reply[at + 3] = taken[i], taken_counts[i], join_body(taken[i], taken_records[i])
    at = at + 3
  end
end
