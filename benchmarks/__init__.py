"""The benchmark: Streams and lists by hand against penstock, in one run on one server.

Run it with `python -m benchmarks` or `nox -s bench`, in the repository. Rounds are interleaved,
ratios are computed for each pair within a round, and each budget is judged against its baseline.
"""

from __future__ import annotations

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; the exit code is 1 if `--check` is given and a budget is exceeded."""
    from benchmarks.command import run

    return run(argv)
