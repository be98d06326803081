-- append_answers(reply, decision, ids) adds the answers of decide_dedup to the reply, five parts each. It returns them as the note of the
-- producer has them.
--- NEEDS  header_of
--- GIVES  append_answers
local function append_answers(reply, decision, ids)
  local told, answers = {}, decision.answers
  for i = 1, #answers, 2 do
    local what, id, state, header = unpack(answers[i + 1])
    if tonumber(id) then -- an index into the added jobs
      id, header = ids[id], header_of(decision.added[id])
    end
    told[#told + 1] = answers[i] .. ' ' .. what .. ' ' .. id .. ' ' .. state .. ' ' .. header .. '\n'
    local j = #reply
    reply[j + 1], reply[j + 2], reply[j + 3], reply[j + 4], reply[j + 5] = answers[i], what, id, state, header
  end
  return table.concat(told)
end
