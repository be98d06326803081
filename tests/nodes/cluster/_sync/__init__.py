# From tests/nodes/cluster/_async/__init__.py by tools/unasync.py; do not edit.
"""What both clients do in a cluster."""
