"""The queue compared with a model in plain Python: the same calls, the same answers."""
