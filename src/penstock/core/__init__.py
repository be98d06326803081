"""The rules of the queue without I/O: no socket, no client, no clock of its own.

Each room imports only from those before it: values, jobs, enqueuing, calls, flows, nodes.
"""
