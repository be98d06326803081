"""What needs real servers: transports, lost connections, processes, threads."""
