"""Tests that run the code in the documentation."""
