-- Set the first fields of meta.
--- NEEDS  change epoch uses now
change('v', uses_any('batches') and '3' or '2')
change('epoch', epoch)
change('uses', uses)
change('made', now)
