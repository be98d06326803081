# From src/penstock/client/_async/sharded/__init__.py by tools/unasync.py; do not edit.
"""A queue on several nodes, or in several partitions, as one."""
