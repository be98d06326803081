# From src/penstock/client/_async/transport/__init__.py by tools/unasync.py; do not edit.
"""Connections to one server, to one behind Sentinel, to a Redis Cluster; the calls on them."""
