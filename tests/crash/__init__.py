"""Clients that die, lost replies, full servers: the state of the queue afterwards."""
