"""Outcomes of calls that name several jobs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import overload

from penstock.core.job import JobName

__all__ = ["CODES", "HINTED", "OUTCOMES", "UNKNOWN", "Outcome", "Settled"]


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
    UNKNOWN = "unknown"
    """Its node can't be reached: it is not known if anything changed."""

    def __str__(self) -> str:
        return self.value


HINTED, UNKNOWN = 100, -100
"""Outcomes that the client sets for jobs whose node can't be reached."""
OUTCOMES = {
    1: Outcome.DONE,
    2: Outcome.ENDED,
    3: Outcome.DEAD,
    4: Outcome.CANCELLED,
    0: Outcome.GONE,
    -1: Outcome.STALE,
    -2: Outcome.REFUSED,
    -3: Outcome.EXPIRED,
    -11: Outcome.TOO_LATE,
    -13: Outcome.TAKEN,
    HINTED: Outcome.HINTED,
    UNKNOWN: Outcome.UNKNOWN,
}


CHANGED = (Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED)
"""Outcomes of jobs that the call has changed."""
CODES = {outcome: code for code, outcome in OUTCOMES.items()}


class Settled(Sequence[Outcome]):
    """The outcome of each job, in the order in which the jobs were named.

    It is true if every job is done.

    Attributes:
        replicas: how many replicas confirmed the call (of several chunks: the fewest); 0 when none
            was asked for.
    """

    def __init__(
        self, names: Sequence[JobName], codes: Sequence[int] | None, replicas: int = 0
    ) -> None:
        self._names = names
        self._codes = codes or (1,) * len(names)
        self.replicas = replicas

    @classmethod
    def of(cls, names: Sequence[JobName], outcomes: Sequence[Outcome]) -> Settled:
        """Make one of outcomes."""
        return cls(names, [CODES[outcome] for outcome in outcomes])

    def __len__(self) -> int:
        return len(self._codes)

    def __bool__(self) -> bool:
        return all(code in (1, 3, 4) for code in self._codes)

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> list[Outcome]: ...
    def __getitem__(self, index: int | slice) -> Outcome | list[Outcome]:
        if isinstance(index, slice):
            return [OUTCOMES[code] for code in self._codes[index]]
        return OUTCOMES[self._codes[index]]

    @property
    def all_done(self) -> bool:
        """True if every outcome is `Outcome.DONE`."""
        return all(code == 1 for code in self._codes)

    def ids(self, *outcomes: Outcome) -> list[str]:
        """Return the ids of the jobs with one of these outcomes, in order, each once.

        Args:
            outcomes: which; none given = done, dead or cancelled.
        """
        wanted = outcomes or CHANGED
        found = (
            name if isinstance(name, str) else name.id
            for name, outcome in zip(self._names, self, strict=True)
            if outcome in wanted
        )
        return list(dict.fromkeys(found))

    def joined(self, other: Settled) -> Settled:
        """Return these outcomes and the other's behind them."""
        names, codes = [*self._names, *other._names], [*self._codes, *other._codes]
        return Settled(names, codes, min(self.replicas, other.replicas))

    def after_resend(self, code: int) -> Settled:
        """Return the outcomes of a call that was sent again: those of the first sending are done.

        Args:
            code: of a job with which the first sending was done.
        """
        return Settled(self._names, [1 if c == code else c for c in self._codes], self.replicas)

    @property
    def done(self) -> int:
        """Number of jobs that the call changed."""
        return sum(outcome in CHANGED for outcome in self)

    def __repr__(self) -> str:
        return f"<Settled {self.done} of {len(self)}>"
