"""Tests of the protocol itself: scripts and documents, without the client."""
