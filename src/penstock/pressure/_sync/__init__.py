# From src/penstock/pressure/_async/__init__.py by tools/unasync.py; do not edit.
"""The client of pressure queues, written once as async; `penstock.pressure._sync` is generated."""
