"""The asynchronous client; `penstock.client._sync` is generated from it."""
