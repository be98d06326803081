-- `changes` are pairs for one HSET of meta at the end; change(field, value) adds one.
--- GIVES  changes change
local changes = {}
local function change(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end
