"""Tests of the rules without I/O; they need no server."""
