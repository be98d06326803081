"""What a watcher makes of its looks at a job."""

from __future__ import annotations

import pytest

from penstock.core.jobs.events import JobStory, LookedAt, Told
from penstock.core.jobs.marks import Failure


def look(
    state: str,
    attempt: int,
    *,
    failures: list[Failure] | None = None,
    told: list[Told] | None = None,
) -> LookedAt:
    """Return a look at a job whose deliveries are its attempts."""
    return LookedAt(
        now=1.0,
        last=b"0-0",
        state=state,
        at=1.0,
        result=None,
        delivered=1.0,
        delivery=attempt,
        attempt=attempt,
        progress=None,
        failures=failures or [],
        entries=told or [],
        read=len(told or []),
        place=b"",
    )


def kinds(story: JobStory, seen: LookedAt) -> list[tuple[str, int]]:
    """Return the events of a look, each with its attempt."""
    return [(event.kind, event.attempt) for event in story.read(seen)]


@pytest.mark.parametrize("later", [0, 1])
def test_attempts_that_fail_in_the_ms_in_which_they_begin(later: int) -> None:
    """A failure comes behind the begin of its attempt, and before that of the next one."""
    first, second = Failure(1.0, None, "ada", "no"), Failure(1.001, None, "ada", "no")
    begun = [Told(1000 + later * (n - 1), "s", n, n, 0, "") for n in (1, 2)]
    story = JobStory("job")
    assert kinds(story, look("ready", 0)) == [("waiting", 0)]
    seen = look("active", 2, failures=[first], told=begun)
    assert kinds(story, seen) == [("started", 1), ("failed", 1), ("started", 2)]
    assert kinds(story, look("ready", 2, failures=[first, second])) == [("failed", 2)]


def test_an_attempt_between_two_looks() -> None:
    """It begins and fails in the same ms, behind a failure that was told before."""
    first, second = Failure(1.0, None, "ada", "no"), Failure(1.001, None, "ada", "no")
    story = JobStory("job")
    assert kinds(story, look("active", 1)) == [("started", 1)]
    assert kinds(story, look("ready", 1, failures=[first])) == [("failed", 1)]
    begun = [Told(1001, "s", 2, 2, 0, "")]
    seen = look("ready", 2, failures=[first, second], told=begun)
    assert kinds(story, seen) == [("started", 2), ("failed", 2)]
