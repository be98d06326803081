# From tests/_async/__init__.py by tools/unasync.py; do not edit.
"""Tests of the client on every back end. `tests/_sync` is generated from them."""
