"""The worker: runs handlers, renews leases, and comes to an orderly end."""
