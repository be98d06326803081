# From src/penstock/client/_async/__init__.py by tools/unasync.py; do not edit.
"""The asynchronous client; `penstock.client._sync` is generated from it."""
