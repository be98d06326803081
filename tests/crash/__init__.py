"""Clients that die, replies that are lost, servers that are full: what is left of the queue."""
