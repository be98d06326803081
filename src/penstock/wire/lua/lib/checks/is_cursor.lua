-- is_cursor(cursor) returns if HSCAN takes this as a cursor: digits of a number below 2^64.
--- GIVES  is_cursor
local function is_cursor(cursor)
  return string.find(cursor, '^%d+$') and (#cursor < 20 or #cursor == 20 and cursor <= '18446744073709551615')
end
