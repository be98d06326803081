"""Several servers, failovers and long faults; they run in a session of their own,
`nox -s nodes`.
"""
