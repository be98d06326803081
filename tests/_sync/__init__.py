# From tests/_async/__init__.py by tools/unasync.py; do not edit.
"""The client's behaviour on every back end; `tests/_sync` is generated from it."""
