"""The rules of the queue without I/O: no socket, no client, no clock of its own."""
