"""The pytest plugin, in runs of its own."""
