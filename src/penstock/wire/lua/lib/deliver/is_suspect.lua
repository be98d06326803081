-- is_suspect(count) returns if a job with these counters has crashed at least twice.
--- GIVES  is_suspect
local function is_suspect(count)
  return tonumber(string.match(count, '^%d+%+? %d+ (%d+)') or 0) > 1
end
