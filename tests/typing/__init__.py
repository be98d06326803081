"""The public surface as used by callers; the type checker is the test."""
