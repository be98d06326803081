-- new_delivery() returns a delivery without jobs. Its lists of jobs are in order of delivery: ids, records, and counts ('' = first
-- delivery). The other lists are changes to write: due (jobs that leave scheduled), dropped (entries without a record), kept_pairs
-- (number and record of jobs of ready that are parked). Fields that are absent at first: cut, the last number taken from ready; ended,
-- what choose_ended has found; those of choose_jobs for next_event, and those of prepare_delivery. A table that gets its fields at once
-- is made quicker.
--- GIVES  new_delivery
local function new_delivery()
  return {
    ids = {}, records = {}, counts = {}, due = {}, dropped = {}, kept_pairs = {}, cut = nil, ended = nil, first_end = nil, first_due = nil,
    is_changed = nil, has_read_all = nil, active_pairs = nil, held_pairs = nil, new_counters = nil, soonest = nil, -- rare: once_pairs
  }
end
