"""The benchmark: Streams and lists by hand against penstock, in one run on one server.

`python -m penstock.bench`, `penstock bench` and `nox -s bench` are the same. Rounds are
interleaved, ratios are taken pair by pair within a round, and each budget is judged beside its
baseline.
"""

from __future__ import annotations

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; the exit code is 1 if `--check` is given and a budget does not hold."""
    from penstock.bench.command import run

    return run(argv)
