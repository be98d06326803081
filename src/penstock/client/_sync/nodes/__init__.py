# From src/penstock/client/_async/nodes/__init__.py by tools/unasync.py; do not edit.
"""The nodes of a client, each a server or a cluster, and what they agree on."""
