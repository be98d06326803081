"""Tests of penstock."""
