"""The client of pressure queues, written once as async; `penstock.pressure._sync` is generated."""
