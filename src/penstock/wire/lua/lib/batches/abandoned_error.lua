-- The error of a callback whose batch was not closed in time.
--- GIVES  abandoned_error
local abandoned_error = 'batch: abandoned, as it was not closed in time'
