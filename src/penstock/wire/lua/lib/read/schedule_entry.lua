-- read_entry(name) returns an entry of `schedules` in parts (protocol/schedules.md, Keys), or nil: number of the last run,
-- time of the last tick, runs, skipped ticks, paused, hashes, and the rest: of a declared schedule ` @`, when it was declared
-- last, a blank and its app; then the value behind a line feed. write_entry puts it back.
--- KEYS   schedules
--- GIVES  read_entry write_entry
local function read_entry(name)
  return string.match(redis.call('HGET', schedules, name) or '', '^(%S+) (%d+) (%d+) (%d+) (%d+) ([%x ]*%x)( ?@?[^\n]*\n.*)$')
end
local function write_entry(name, last_run, last_tick, runs, skipped, is_paused, hashes, rest)
  local front = {last_run, last_tick, runs, skipped, is_paused, hashes}
  redis.call('HSET', schedules, name, table.concat(front, ' ') .. rest)
end
