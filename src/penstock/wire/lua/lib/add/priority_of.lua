-- priority_of(value) returns the priority of a job from its record, or from its value in held: 1 to 9, or 0 = usual.
--- GIVES  priority_of
local function priority_of(value)
  local at = string.byte(value) == 64 and (string.find(value, '\n', 1, true) or 0) + 1 or 1
  return tonumber(string.match(value, '^[1+][;lt=%d]*;p=[^,;\n]*,[^,;\n]*,[^,;\n]*,([1-9])[,;\n]', at) or 0)
end
