-- Set the first fields of meta.
--- NEEDS  change epoch uses now
change('v', '2')
change('epoch', epoch)
change('uses', uses)
change('made', now)
