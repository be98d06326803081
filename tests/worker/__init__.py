"""Tests of the worker: its parts without a server, and whole workers with one."""
