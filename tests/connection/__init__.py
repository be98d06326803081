"""Tests that need real servers: transports, lost connections, processes, threads."""
