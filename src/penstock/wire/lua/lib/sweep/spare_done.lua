-- spare_done(expired, done) takes the jobs that are done out of what find_expired has found: they ended in time. trim_to, head_count and
-- others may then be those of more jobs than are left; remove_expired notices it by the number of entries that it trims.
--- GIVES  spare_done
local function spare_done(expired, done)
  if #done == 0 or #expired.ids + #expired.once == 0 then
    return
  end
  local ended = {}
  for i = 1, #done do
    ended[done[i]] = true
  end
  local function without_ended(ids)
    local left = {}
    for i = 1, #ids do
      if not ended[ids[i]] then
        left[#left + 1] = ids[i]
      end
    end
    return left
  end
  expired.ids, expired.once = without_ended(expired.ids), without_ended(expired.once)
end
