# From src/penstock/client/_async/route/__init__.py by tools/unasync.py; do not edit.
"""The routes of a queue: how its calls reach one node, several nodes, or partitions."""
