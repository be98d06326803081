"""The client, written as async; `penstock._sync` is generated from it."""
