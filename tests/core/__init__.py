"""The rules without I/O: no server is needed."""
