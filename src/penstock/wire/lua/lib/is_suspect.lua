-- is_suspect(count): the lease of this job has ended twice without a word from its consumer.
--- GIVES  is_suspect
local function is_suspect(count)
  return tonumber(string.match(count, '^%d+%+? %d+ (%d+)') or 0) > 1
end
