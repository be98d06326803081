-- The error of a callback whose batch was not closed in time.
--- GIVES  abandoned
local abandoned = 'batch: abandoned, as it was not closed in time'
