"""The queue beside a model in plain Python: the same calls, the same answers."""
