"""The worker: its parts without a server, and the whole against one."""
