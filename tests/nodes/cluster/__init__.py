"""Redis Cluster: redirections, slots on their way, failovers, waits in several slots."""
