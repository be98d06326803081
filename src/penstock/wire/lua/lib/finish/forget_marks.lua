-- forget_marks(ids) removes the marks and the notes of jobs that end. A queue with notes has marks.
--- KEYS   tally
--- NEEDS  uses notes_left note_bytes_left
--- SETS   notes_left note_bytes_left
--- GIVES  forget_marks
local function forget_marks(ids)
  if uses_any('marks') and redis.call('HLEN', tally) > 0 then
    for mark in string.gmatch('celps', '.') do
      local fields = {}
      for i = 1, #ids do
        fields[i] = mark .. ids[i]
      end
      redis.call('HDEL', tally, unpack(fields))
    end
    if uses_any('notes') then
      --@include lib/finish/drop_notes
      local owners = ids
      if uses_any('batches') then -- and the values of their batches
        owners = {unpack(ids)}
        for i = 1, #ids do
          owners[#ids + i] = 'b' .. ids[i]
        end
      end
      drop_notes(owners)
    end
  end
end
