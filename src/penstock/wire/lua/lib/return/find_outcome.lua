-- find_outcome(text, voided, name) returns the kind and the value of the outcome of a wait for this name; nil = there is none. Of the first
-- `voided` bytes of the outcomes of the job the timeouts do not count: they were noted before its last redrive.
--- GIVES  find_outcome
local function find_outcome(text, voided, name)
  local from, to = nil, 0
  repeat
    from, to = string.find(text, '\n' .. name .. '\t', to + 1, true)
    local kind, value = string.match(text, '^(%l)\t%d+\t([^\n]*)', to and to + 1 or #text + 1)
    if kind == 's' or kind and from > tonumber(voided) then
      return kind, value
    end
  until not from
end
