"""Tests of the tests' own machinery."""
