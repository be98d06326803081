"""Integrations with other packages; each module needs the extra of its name."""
