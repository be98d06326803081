"""Tests of both clients in a cluster."""
