-- Whether a job with these counters is a suspect: its lease has ended twice without a word.
--- GIVES  suspected
local function suspected(count)
  return tonumber(string.match(count, '^%d+%+? %d+ (%d+)') or 0) > 1
end
