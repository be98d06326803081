"""Script calls of a queue, their errors and limits."""
