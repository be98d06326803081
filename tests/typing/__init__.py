"""The public surface as callers write it; the type checker is the test."""
