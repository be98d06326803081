# From tests/nodes/cluster/_async/__init__.py by tools/unasync.py; do not edit.
"""Tests of both clients in a cluster."""
