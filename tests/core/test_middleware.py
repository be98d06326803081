"""Middleware around a call: order, events and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from penstock import BadArgument, Enqueued, EnqueueEvent, IncompleteEnqueue, Middleware, RunEvent
from penstock.core.enqueuing.new_jobs import JobOptions, NewJob, hooked
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation
from penstock.core.jobs.middleware import (
    NO_CONTEXT,
    check_middleware,
    enqueue_event,
    enqueuing,
    running,
)

PLACE = QueueIdentity("q", "deadbeef", 0xCAFEBABE, "01020304")


def delivery(counts: bytes = b"", number: bytes = b"1700000000000-1000000005") -> Delivery:
    """Return a job delivered 2.5 s after the time of its number."""
    reservation = Reservation(None, PLACE, "me", tag=0x0AB, now=1_700_000_002_500, lease_ms=30_000)
    return Delivery(reservation, number, counts, b"1\n")


class Noting(Middleware):
    """A middleware that records its calls.

    Args:
        name: its own.
        notes: where to.
    """

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    @contextmanager
    def around(self, error: BaseException | None) -> Iterator[None]:
        """Record the call before and after, with the error."""
        self.notes.append(f"{self.name} in")
        try:
            yield
        except BaseException as raised:
            self.notes.append(f"{self.name} {raised!r}")
            raise
        self.notes.append(f"{self.name} out")

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        with self.around(event.error):
            yield

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        with self.around(event.error):
            yield


class Swallowing(Middleware):
    """A middleware that suppresses errors."""

    def enqueue(self, event: EnqueueEvent) -> suppress:
        return suppress(Exception)

    def run(self, event: RunEvent) -> suppress:
        return suppress(Exception)


class Refusing(Middleware):
    """A middleware that raises before the call."""

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        raise PermissionError("not now")
        yield


class Uncommitted(Middleware):
    """A middleware that raises after a successful call."""

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        yield
        raise OSError("not committed")

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        yield
        raise OSError("not committed")


class Replacing(Middleware):
    """A middleware that replaces an error by another one."""

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        try:
            yield
        except LookupError as error:
            raise OSError("instead") from error


class Watching(Middleware):
    """A middleware that stores the event's attributes after the call."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException | None]] = []

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        try:
            yield
        finally:
            self.seen.append((event.outcome, event.error))

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        try:
            yield
        finally:
            self.seen.append(("", event.error))


def a_run() -> RunEvent:
    """Return the event of a run of one job."""
    return RunEvent("q", (delivery(),), "greet")


def test_hooks_are_nested_in_order() -> None:
    """Hooks are nested in order; the first is the outermost."""
    notes: list[str] = []
    with running((Noting("a", notes), Noting("b", notes)), a_run()):
        notes.append("run")
    assert notes == ["a in", "b in", "run", "b out", "a out"]


def test_an_error_passes_through_all_of_them() -> None:
    """An error passes from the innermost hook to the outermost and to the caller."""
    notes: list[str] = []
    event = a_run()
    error = LookupError("no")
    with pytest.raises(LookupError), running((Noting("a", notes), Noting("b", notes)), event):
        raise error
    assert notes == ["a in", "b in", "b LookupError('no')", "a LookupError('no')"]
    assert (event.outcome, event.error) == ("failed", None)


def test_a_hook_that_raises_before_it_yields() -> None:
    """A hook raises before it yields: the handler does not run, and outer hooks see the error."""
    notes: list[str] = []
    hooks = (Noting("a", notes), Refusing(), Noting("b", notes))
    with pytest.raises(PermissionError), running(hooks, a_run()):
        notes.append("run")
    assert notes == ["a in", "a PermissionError('not now')"]


def test_the_outcome_is_known_after_the_run() -> None:
    """After the run the outcome is done, or the runner's outcome of the result or error."""
    watching = Watching()
    error = LookupError("no")
    with running((watching,), a_run()):
        pass
    with suppress(LookupError), running((watching,), a_run()):
        raise error
    with suppress(LookupError), running((watching,), a_run(), lambda _: "retried"):
        raise error
    snoozed = a_run()
    with running((watching,), snoozed):
        snoozed.outcome = "snoozed"
    assert watching.seen == [
        ("done", None), ("failed", error), ("retried", error), ("snoozed", None),
    ]  # fmt: skip


def test_a_hook_sees_errors_of_inner_hooks() -> None:
    """Each hook sees the error of an inner hook in place of the handler's."""
    outer = Watching()
    with suppress(PermissionError), running((outer, Refusing()), a_run(), repr):
        pytest.fail("not reached")
    [(outcome, error)] = outer.seen
    assert outcome == repr(error) == "PermissionError('not now')"

    outer, inner = Watching(), Watching()
    with suppress(OSError), running((outer, Uncommitted(), inner), a_run(), repr):
        pass
    assert inner.seen == [("done", None)]
    assert outer.seen[0][0] == "OSError('not committed')"

    outer, inner = Watching(), Watching()
    error = LookupError("no")
    with suppress(OSError), running((outer, Replacing(), inner), a_run(), repr):
        raise error
    assert inner.seen == [(repr(error), error)]
    assert outer.seen[0][0] == "OSError('instead')"


@pytest.mark.parametrize("hook", [Refusing, Uncommitted])
def test_an_error_of_the_outermost_hook_is_judged(hook: type[Middleware]) -> None:
    """The outcome is that of an error of the outermost hook; the event keeps no error."""
    event = a_run()
    with pytest.raises(OSError, match="not") as caught, running((hook(),), event, repr):
        pass
    assert (event.error, event.outcome) == (None, repr(caught.value))


def test_an_event_forgets_its_error_and_its_value() -> None:
    """They are there until the outermost hook has ended, whatever ends it."""
    for hooks in ((Watching(),), (Replacing(), Refusing()), (Uncommitted(),)):
        event = a_run()
        with suppress(LookupError, OSError), running(hooks, event):
            event.value = 7
            raise LookupError("no")
        assert (event.error, event.value) == (None, None)


def test_an_outcome_set_by_the_caller_is_kept() -> None:
    """An error and outcome set by the caller are not changed."""
    event, watching, error = a_run(), Watching(), LookupError("no")
    with suppress(LookupError), running((watching,), event, lambda _: pytest.fail("judged")):
        event.error, event.outcome = error, "retried"
        raise error
    assert watching.seen == [("retried", error)]


def test_an_error_cannot_be_swallowed() -> None:
    """A suppressed error is raised all the same, and outer hooks see it."""
    notes: list[str] = []
    for around in (running, enqueuing):
        watching, error = Watching(), LookupError("no")
        event: Any = a_run() if around is running else EnqueueEvent("q", 1)
        hooks = (watching, Noting("a", notes), Swallowing())
        with pytest.raises(LookupError) as caught, around(hooks, event):
            raise error
        assert caught.value is error
        assert watching.seen[-1][1] is error
    assert notes == ["a in", "a out"] * 2


def test_stop_iteration_is_an_error_like_others() -> None:
    """StopIteration is handled as any other error, although the hooks are generators."""
    outer, inner = Watching(), Watching()
    with pytest.raises(StopIteration), running((outer, Noting("a", []), inner), a_run()):
        raise StopIteration("end")
    assert [type(error) for _, error in outer.seen + inner.seen] == [StopIteration] * 2


def test_without_middleware_nothing_is_made() -> None:
    """Without middleware every run uses one shared context."""
    assert running((), a_run()) is running((), a_run()) is NO_CONTEXT
    with (
        running((), a_run()),
        Middleware().run(a_run()),
        Middleware().enqueue(EnqueueEvent("q", 1)),
    ):
        pass


def test_the_time_is_that_of_the_handler() -> None:
    """The measured time is the handler's without the hooks, also when it raises."""
    event, times = a_run(), iter([5.0, 7.5])
    with suppress(LookupError), running((Middleware(),), event, clock=lambda: next(times)):
        assert event.seconds == 0
        raise LookupError("no")
    assert event.seconds == 2.5


def test_an_error_after_an_enqueue_keeps_the_answer() -> None:
    """After an error behind an enqueue the event has the results."""
    event, results, outer = EnqueueEvent("q", 1), [Enqueued("id", "ready")], Watching()
    with pytest.raises(OSError, match="not committed"), enqueuing((outer, Uncommitted()), event):
        event.results = results
    assert event.results is results
    assert isinstance(outer.seen[0][1], OSError)


def test_an_incomplete_enqueue_names_the_jobs_that_are_there() -> None:
    """The event of an incomplete enqueue lists the added jobs, as the error does."""
    event, results = EnqueueEvent("q", None), [object()]
    with pytest.raises(IncompleteEnqueue), enqueuing((Noting("a", []),), event):
        raise IncompleteEnqueue(results)
    assert event.results is results


def test_headers_are_the_event_s_own() -> None:
    """Added headers do not change the caller's mapping; the handler's name is a header."""
    given = {"handler": "greet"}
    event = enqueue_event("q", 1, given)
    event.headers["more"] = "x"
    assert given == {"handler": "greet"}
    assert (event.handler, enqueue_event("q", 1, None).handler) == ("greet", None)
    with pytest.raises(BadArgument, match="headers="):
        enqueue_event("q", 1, [("a", "b")])


@pytest.mark.parametrize("given", [None, 5, Noting("a", []), [Noting], [Noting("a", []), print]])
def test_only_middleware_is_taken(given: object) -> None:
    """A single middleware, a class or a function is refused."""
    with pytest.raises(BadArgument, match="middleware="):
        check_middleware(given)


def test_jobs_of_a_mixed_batch_are_counted_by_outcome() -> None:
    """A mixed batch counts its jobs by outcome; a single outcome applies to all."""
    event = RunEvent("q", (delivery(), delivery(), delivery()))
    event.outcome = "done"
    assert event.counts == {"done": 3}
    event.outcome, event.outcomes = "mixed", {"done": 2, "retried": 1}
    assert event.counts == {"done": 2, "retried": 1}


def test_queueing_is_that_of_the_first_new_job() -> None:
    """Queueing time is that of the first new job; redeliveries do not count, and it
    is never negative.
    """
    again, late = delivery(b"2 1 0 0"), delivery(number=b"1700000002000-1000000006")
    ahead = delivery(number=b"1700000009999-1000000006")
    assert RunEvent("q", (delivery(), late)).queueing == 2.5
    assert RunEvent("q", (again, late)).queueing == 0.5
    found = [RunEvent("q", jobs).queueing for jobs in ((again,), (), (ahead,))]
    assert found == [None, None, 0.0]
    assert RunEvent("q", (late,)).queueing == 0.5


def test_the_hooks_of_a_job_that_another_call_adds_are_timed() -> None:
    """A job that is handed over passes through the hooks, with the time that they take."""
    seconds, times = list[float](), iter([1.0, 3.5])

    class Timing(Middleware):
        @contextmanager
        def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
            event.headers["trace"] = "7"
            yield
            seconds.append(event.seconds)

    job = hooked(
        NewJob(b"body", JobOptions({})), "q", middleware=(Timing(),), clock=lambda: next(times)
    )
    assert (job.options.headers, seconds) == ({"trace": "7"}, [2.5])
