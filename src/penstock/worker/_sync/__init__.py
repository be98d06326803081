# From src/penstock/worker/_async/__init__.py by tools/unasync.py; do not edit.
"""The worker, written once, as async."""
