"""The smallest plan whose system still fails: what a failure needs, and its short story."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.plan import Plan
from tests.simulation.plants import Plant
from tests.simulation.system import BrokenPromise, simulate

__all__ = ["Failure", "fail_by", "shrink"]

MOST_SEEDS = 8
"""Seeds with which a smaller plan is tried. Without a part all draws after it are others, so one
seed says little."""


class Failure:
    """A failure of a system.

    Args:
        seed: the seed.
        plan: what the system consists of.
        error: what its run raised.
    """

    def __init__(self, seed: int, plan: Plan, error: Exception) -> None:
        self.seed = seed
        self.plan = plan
        self.error = error

    def __str__(self) -> str:
        parts = ", ".join(self.plan.parts)
        own = "" if self.plan.seed == self.seed else f" --plan {self.plan.seed}"
        return f'--seed {self.seed}{own} --only "{parts}"\n{self.error}'

    @property
    def kind(self) -> str:
        """What failed, without the names of jobs, members and numbers."""
        if not isinstance(self.error, BrokenPromise):
            return type(self.error).__name__
        words = self.error.broken[0].split()
        return " ".join(word for word in words if word.isalpha())


def fail_by(
    seed: int, plan: Plan, plant: Plant | None = None, log: list[str] | None = None
) -> Failure | None:
    """Return how a plan fails with a seed; None = it does not. See `simulate`."""
    try:
        simulate(seed, plan=plan, plant=plant, log=log)
    except Exception as error:  # noqa: BLE001  # any failure is one
        return Failure(seed, plan, error)
    return None


def shrink(
    failure: Failure, plant: Plant | None = None, tell: Callable[[str], object] = str
) -> Failure:
    """Return a failure of the same kind whose plan has no part that can be spared.

    Args:
        failure: the failure.
        plant: the fault that was planted into the product.
        tell: is told of each smaller plan.
    """
    size = max(1, len(failure.plan.parts) // 2)
    while True:
        smaller = _drop_some(failure, size, plant)
        if smaller is not None:
            failure = smaller
            tell(f"{len(failure.plan.parts)} parts: {', '.join(failure.plan.parts)}")
            size = max(1, min(size, len(failure.plan.parts) // 2))
        elif size == 1:
            return failure
        else:
            size //= 2


def _drop_some(failure: Failure, size: int, plant: Plant | None) -> Failure | None:
    """Return a failure without `size` adjacent parts of the plan; None = all are needed."""
    parts = failure.plan.parts
    for start in range(0, len(parts), size):
        plan = failure.plan.keep((*parts[:start], *parts[start + size :]))
        for seed in _seeds(failure.seed):
            found = fail_by(seed, plan, plant)
            if found is not None and found.kind == failure.kind:
                return found
    return None


def _seeds(seed: int) -> Sequence[int]:
    return [seed, *(seed * 1000 + more for more in range(1, MOST_SEEDS))]
