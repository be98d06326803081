"""The version of the package, for its own modules."""

__version__ = "0.1.0"
