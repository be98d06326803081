"""Promises of other queues, tested on every back end."""
