"""`penstock demo`: a queue at work on real files, with a worker killed in the middle.

Nothing is imported here: the workers are processes, and start without the command's own imports.
"""
