"""The worker, written once, as async."""
