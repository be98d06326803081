"""An app with orders, whose jobs are in `tasks.py`."""
