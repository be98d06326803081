"""Shared parts of tests: back ends, and a proxy that breaks connections."""
