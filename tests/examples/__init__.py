"""The examples, run as by a reader."""
