-- Scores of active and once: (end - 2025-01-01) * 4096 + the receipt's tag, exact until 2094. A later end becomes that.
--- GIVES  score_of end_of
local function score_of(ms, tag)
  return (math.min(ms, 3934712855551) - 1735689600000) * 4096 + tag
end
local function end_of(score)
  return math.floor(score / 4096) + 1735689600000
end
