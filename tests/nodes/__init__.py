"""Several servers at once, failovers, minutes of faults: a session of its own, `nox -s nodes`."""
