"""A whole system in one process: real clients and scripts under a virtual clock, from a seed."""
