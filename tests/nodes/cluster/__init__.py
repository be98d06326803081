"""Redis Cluster: redirections, migrating slots, failovers, waits in several slots."""
