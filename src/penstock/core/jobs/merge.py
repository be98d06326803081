"""Merge the answers of several parts of a queue to one call; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from penstock.core.jobs.job import JobName
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.errors import AckNotReplicated, IncompleteSettle, NodesMissed

__all__ = ["Answers", "hinted", "split_error", "with_outcomes"]

T = TypeVar("T")


def split_error(
    error: Exception,
) -> tuple[Sequence[Any], AckNotReplicated | None, BaseException | None]:
    """Take an error of one part apart: the answers for its first jobs, and the failure.

    Returns:
        Those answers, what was not confirmed of them, and what ended the call before the others.
    """
    if isinstance(error, AckNotReplicated):
        return error.outcomes, error, None
    if isinstance(error, IncompleteSettle):
        return error.outcomes, error.not_replicated, error.__cause__
    return (), None, error


class Answers(Generic[T]):
    """The answers of several parts to a call about jobs.

    Args:
        count: how many jobs.
        unknown: the answer for a job whose part has not answered.

    Attributes:
        missed: the nodes that have not answered, and why.
        short: what was not confirmed by enough replicas.
        failure: the failure of a part, on a node that may have others that work.
    """

    def __init__(self, count: int, unknown: T) -> None:
        self._answers: list[T] = [unknown] * count
        self._is_answered = False
        self.missed: dict[str, str] = {}
        self.short: AckNotReplicated | None = None
        self.failure: BaseException | None = None

    def note(self, where: Sequence[int], answers: Sequence[T]) -> None:
        """Note the answers of a part for the jobs at these places, or for the first of them."""
        self._is_answered = self._is_answered or bool(answers)
        for at, answer in zip(where, answers, strict=False):
            self._answers[at] = answer

    def checked(self, names: list[JobName]) -> list[T]:
        """Return all answers, in order.

        Raises:
            NodesMissed, IncompleteSettle, AckNotReplicated: some are not what was asked for.
        """
        if self.failure is not None:
            if not self._is_answered:
                raise self.failure
            raise IncompleteSettle(self._answers, self.short) from self.failure
        if self.missed:
            raise NodesMissed(self.missed, self._answers) from self.short
        short = self.short
        if short is not None:
            whole = Settled(names, cast("list[Outcome]", self._answers))
            raise AckNotReplicated(whole, 0, short.wanted, short.got, short.fsynced)
        return self._answers


def hinted(kept: Sequence[bool]) -> list[Outcome]:
    """Return the outcomes of a call that another node has kept for some of its jobs."""
    return [Outcome.HINTED if one else Outcome.UNKNOWN for one in kept]


@contextmanager
def with_outcomes(
    names: list[JobName],
    settled: Callable[[list[JobName], Iterable[Any]], Settled] = Settled,
) -> Iterator[None]:
    """Let an error of the block about these jobs have their outcomes as `Settled`.

    Args:
        names: the jobs.
        settled: makes it of the jobs and their answers.
    """
    try:
        yield
    except NodesMissed as error:
        error.results = settled(names, error.results)
        raise
    except IncompleteSettle as error:
        if not isinstance(error.outcomes, Settled):
            error.outcomes = settled(names, error.outcomes)
        raise
