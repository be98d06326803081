# Generated from src/penstock/_async/__init__.py by tools/unasync.py; do not edit.
"""The client, written as async; `penstock._sync` is generated from it."""
