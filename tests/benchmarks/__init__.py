"""Tests of the benchmark with few jobs: it has every row, and the arithmetic is right."""
