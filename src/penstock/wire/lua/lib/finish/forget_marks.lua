-- forget_marks(ids) removes the marks of jobs that end.
--- KEYS   tally
--- NEEDS  uses
--- GIVES  forget_marks
local function forget_marks(ids)
  if uses_any('marks') and redis.call('HLEN', tally) > 0 then
    for mark in string.gmatch('ceps', '.') do
      local fields = {}
      for i = 1, #ids do
        fields[i] = mark .. ids[i]
      end
      redis.call('HDEL', tally, unpack(fields))
    end
  end
end
