"""The pytest plugin, in separate runs of pytest."""
