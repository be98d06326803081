"""Outcomes of calls that name several jobs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from penstock.core.jobs.job import JobName
from penstock.errors import CHANGING_OUTCOMES

__all__ = ["OUTCOME_OF_CODE", "SIGNALLED_OF_OUTCOME", "Outcome", "Settled", "Signalled"]


class Outcome(str, enum.Enum):
    """The outcome for one job of a call that names several."""

    DONE = "done"
    """The call did what it says."""
    DEAD = "dead"
    """Done, and the job is a dead letter now: its attempts or releases are used up."""
    CANCELLED = "cancelled"
    """Active: its holder is told to end it; or it was, and the job has ended now."""
    GONE = "gone"
    """It finished, expired or was deleted before; nothing changed."""
    STALE = "stale"
    """A later delivery holds it; nothing changed."""
    ENDED = "ended"
    """This delivery was settled before, by this same receipt; nothing changed."""
    REFUSED = "refused"
    """It is in a state in which the call is not allowed; nothing changed."""
    TAKEN = "taken"
    """Its dedup id is another job's by now; nothing changed."""
    EXPIRED = "expired"
    """Its ttl has ended; nothing changed."""
    TOO_LATE = "too late"
    """More than half of its ttl has passed; nothing changed."""
    HINTED = "hinted"
    """Its node can't be reached: another node keeps the call and repeats it later."""
    WATCHED = "watched"
    """It goes on, and a client watches it; only of a look at deliveries."""
    UNKNOWN = "unknown"
    """Its node can't be reached: it is not known if anything changed."""

    def __str__(self) -> str:
        return self.value


OUTCOME_OF_CODE: dict[int, Outcome] = {
    1: Outcome.DONE,
    2: Outcome.ENDED,
    3: Outcome.DEAD,
    4: Outcome.CANCELLED,
    6: Outcome.WATCHED,
    0: Outcome.GONE,
    -1: Outcome.STALE,
    -2: Outcome.REFUSED,
    -3: Outcome.EXPIRED,
    -11: Outcome.TOO_LATE,
    -13: Outcome.TAKEN,
}
"""The outcome for each code of a job in a reply. The others are set by the client."""


class Signalled(str, enum.Enum):
    """The outcome of `queue.signal`. Only `TAKEN` is true."""

    TAKEN = "taken"
    """The job has the signal: it is, or will be, the value of its wait for this name."""
    THERE_ALREADY = "there already"
    """A wait for this name has an outcome: an earlier signal, or a timeout; nothing changed."""
    GONE = "gone"
    """The job finished, expired or was deleted before; nothing changed."""
    AT_MOST_ONCE = "at most once"
    """It is delivered at most once (lease 0), so it can't wait; nothing changed."""

    def __str__(self) -> str:
        return self.value

    def __bool__(self) -> bool:
        return self is Signalled.TAKEN


SIGNALLED_OF_OUTCOME = {
    Outcome.DONE: Signalled.TAKEN,
    Outcome.ENDED: Signalled.THERE_ALREADY,
    Outcome.TAKEN: Signalled.THERE_ALREADY,
    Outcome.GONE: Signalled.GONE,
    Outcome.REFUSED: Signalled.AT_MOST_ONCE,
}
"""The outcome of a signal, by that of its call, where taken = another outcome is there."""


class Settled(list[Outcome]):
    """The outcome of each job, in the order in which the jobs were named.

    It is true if every job is done.

    Args:
        names: the jobs.
        outcomes: of each job, or of the first of them; None = all are done.

    Attributes:
        replicas: how many replicas confirmed the call (of several chunks: the fewest); 0 when none
            was asked for.
        seconds_left: of an `extend`, for each job: seconds until its lease ends; None = it was not
            extended. Of other calls it is empty.
    """

    seconds_left: Sequence[float | None] = ()

    def __init__(
        self,
        names: Sequence[JobName],
        outcomes: Iterable[Outcome] | None = None,
        replicas: int = 0,
    ) -> None:
        super().__init__([Outcome.DONE] * len(names) if outcomes is None else outcomes)
        self._names = names
        self.replicas = replicas

    @classmethod
    def of_leases(cls, names: Sequence[JobName], answers: Iterable[float | Outcome]) -> Settled:
        """Return the outcomes of an `extend`.

        Args:
            names: the jobs.
            answers: for each, seconds until its lease ends; or why it was not extended.
        """
        answers = list(answers)
        renewed = [None if isinstance(one, Outcome) else one for one in answers]
        settled = cls(names, [one if isinstance(one, Outcome) else Outcome.DONE for one in answers])
        settled.seconds_left = renewed
        return settled

    def __bool__(self) -> bool:
        return self.done == len(self)

    @property
    def all_done(self) -> bool:
        """True if every outcome is `Outcome.DONE`."""
        return self.count(Outcome.DONE) == len(self)

    def ids(self, *outcomes: Outcome) -> list[str]:
        """Return the ids of the jobs with one of these outcomes, in order, each once.

        Args:
            outcomes: which; none given = done, dead or cancelled.
        """
        wanted = outcomes or CHANGING_OUTCOMES
        ids = (
            name if isinstance(name, str) else name.id
            for name, outcome in zip(self._names, self, strict=False)
            if outcome in wanted
        )
        return list(dict.fromkeys(ids))

    def joined(self, other: Settled) -> Settled:
        """Return these outcomes and the other's behind them."""
        names = [*self._names, *other._names]
        return Settled(names, [*self, *other], min(self.replicas, other.replicas))

    def after_resend(self, code: int) -> Settled:
        """Return the outcomes of a call that was sent again: those of the first sending are done.

        Args:
            code: of a job with which the first sending was done.
        """
        outcomes = [Outcome.DONE if one is OUTCOME_OF_CODE[code] else one for one in self]
        return Settled(self._names, outcomes, self.replicas)

    @property
    def done(self) -> int:
        """Number of jobs that the call changed."""
        return sum(outcome in CHANGING_OUTCOMES for outcome in self)

    def __repr__(self) -> str:
        return f"<Settled {self.done} of {len(self)}>"
