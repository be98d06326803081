"""Options that choose jobs, for the commands that show or change many."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from penstock.cli.parameters import Option

__all__ = ["ChosenJobs", "YesOption"]

YesOption = Annotated[bool, Option(("--yes", "-y"))]


@dataclass(frozen=True)
class ChosenJobs:
    """Options that choose jobs; those that are given must all match.

    Args:
        handler: only jobs of this handler; an empty text = jobs without one.
        error: only jobs with this text in their last error, in any case of its letters.
        text: only jobs with this text in their body, a header, their dedup id or last error.
        group: only jobs of this group of errors; `penstock errors` lists them.
        key: only jobs of this key.
        batch: only jobs of the batch with this id.
        older_than: only jobs that were enqueued longer ago than this.
        suspended: only jobs whose step sleeps, or waits for a signal or for jobs.
    """

    handler: str | None = None
    error: str | None = None
    text: str | None = None
    group: str | None = None
    key: str | None = None
    batch: str | None = None
    older_than: float | None = None
    suspended: bool = False

    def __bool__(self) -> bool:
        return bool(self.options)

    @property
    def options(self) -> dict[str, Any]:
        """Return the given ones as arguments of `queue.jobs`."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}
