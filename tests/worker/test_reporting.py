"""Reports that a queue refuses, without a server."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from penstock import BadArgument, Handlers
from penstock.core.calls.operations import Taken
from penstock.core.jobs.job import Delivery, set_result, set_term
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.errors import CannotSync, DeliveryNotReplicated, OutOfMemory, QueueDamaged
from penstock.worker.concerns import leave_out
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.options import WorkerOptions
from penstock.worker.polls import Finished, QueuePoll, Reports
from penstock.worker.reporting import MOST_REPORT_TRIES, drop_expired, report, report_all
from penstock.worker.results import ACK, HANDED_BACK, Verdict
from penstock.worker.state import WorkerState
from penstock.worker.terms import Term
from tests.worker.deliveries import made

SCRIPT_ERROR = ResponseError("user_script:7: attempt to compare number with nil")
BAD = BadArgument("priority", "5", "can't be used")
DAMAGED = QueueDamaged("key 'dead' has the wrong type")


class Ops:
    """Operations whose calls are named tuples: the kind, the jobs, and the text of a failure."""

    name = "q"
    node = None

    def ack(self, jobs: Sequence[Delivery], *_: Any, results: Any = None) -> Any:
        return SimpleNamespace(kind="ack", jobs=jobs, text="", resent=0.0, results=results)

    def settle(self, jobs: Sequence[Delivery], _: int, *, results: Any, **__: Any) -> Any:
        return SimpleNamespace(kind="settle", jobs=jobs, text="", resent=0.0, results=results)

    def nack(self, jobs: Sequence[Delivery], _delay: int, text: str, _trace: str) -> Any:
        return SimpleNamespace(kind="nack", jobs=jobs, text=text, resent=0.0)

    def bury(self, jobs: Sequence[Delivery], text: str, _trace: str) -> Any:
        return SimpleNamespace(kind="bury", jobs=jobs, text=text, resent=0.0)

    def release(self, jobs: Sequence[Delivery], _delay: int) -> Any:
        return SimpleNamespace(kind="release", jobs=jobs, text="", resent=0.0)


class Refusing:
    """A queue that refuses reports, and a worker that has some.

    Args:
        count: number of its jobs, which are done.
        refuse: returns the error of a report about one job, by the kind; None = it is accepted.
        options: of the worker.
    """

    def __init__(
        self, count: int, refuse: Callable[[str, int], Exception | None], **options: Any
    ) -> None:
        self.jobs = [made(number) for number in range(count)]
        self.calls = 0
        self.reported: dict[str, list[int]] = {}
        self.texts: set[str] = set()
        self._refuse = refuse
        self.poll = QueuePoll(cast(Any, Ops()))
        handlers = Handlers()
        handlers.handler(None)(lambda _: None)
        self.state = WorkerState(
            [self.poll],
            Dispatcher(handlers, cast(Any, None), return_unknown=print, clock=time.monotonic),
            wake=lambda: None,
            clock=lambda: 100.0,
            options=WorkerOptions("q", **options),
        )
        self.state.held = dict.fromkeys(self.jobs, 0.0)
        for job in self.jobs:
            set_term(job, Term(130.0, 30.0))
        self.reports: Reports = {ACK: [Finished((job,), ACK, 0.0) for job in self.jobs]}

    def report(self) -> Exception | None:
        """Report all jobs; return the error that remains."""
        flow = report_all(self.state, self.poll, self.reports)
        try:
            effect = next(flow)
            while True:
                self.calls += 1
                call: Any = cast(Any, effect).call
                numbers = [job.body for job in call.jobs]
                errors = list(filter(None, (self._refuse(call.kind, n) for n in numbers)))
                if errors:
                    effect = flow.throw(errors[0])
                else:
                    self.reported.setdefault(call.kind, []).extend(numbers)
                    self.texts |= {call.text} - {""}
                    effect = flow.send(Settled(call.jobs))
        except StopIteration:
            return None
        except Exception as error:  # noqa: BLE001  # the tests look at it
            return error

    @property
    def left(self) -> list[int]:
        """The jobs whose reports are left for later."""
        return [job.body for part in self.reports.values() for done in part for job in done.jobs]

    @property
    def counts(self) -> dict[str, int]:
        """The outcomes that the worker has counted."""
        return dict(self.state.statistics.snapshot().counts)


def test_the_other_jobs_of_a_refused_call_are_reported() -> None:
    """Two of 300 jobs can't be acknowledged: they fail with the error, in few calls."""
    worker = Refusing(300, lambda kind, n: BAD if kind == "ack" and n in (17, 200) else None)
    assert worker.report() is None
    assert sorted(worker.reported["ack"]) == [n for n in range(300) if n not in (17, 200)]
    assert worker.reported["nack"] == [17, 200]
    assert worker.texts == {f"BadArgument: {BAD}"}
    assert worker.calls < 60
    assert worker.counts == {"done": 298, "retried": 2}
    assert not worker.state.held


def test_a_chunk_of_which_one_job_is_refused() -> None:
    """The jobs of one run of a chunk handler are reported apart if one of them is refused."""
    worker = Refusing(7, lambda kind, n: BAD if kind == "ack" and n == 4 else None)
    worker.reports = {ACK: [Finished(worker.jobs, ACK, 0.0, [1.0] * 7)]}
    assert worker.report() is None
    assert sorted(worker.reported["ack"]) == [0, 1, 2, 3, 5, 6]
    assert worker.reported["nack"] == [4]


@pytest.mark.parametrize(
    "is_chunk, count, size, sizes",
    [
        (True, 40, 65_000, [16, 16, 8]),
        (False, 40, 65_000, [16, 16, 8]),
        (True, 3, 2_000_000, [1, 1, 1]),
        (True, 700, 2_000, [299, 401]),
        (True, 700, 100, [700]),
    ],
)
def test_results_of_many_bytes(is_chunk: bool, count: int, size: int, sizes: list[int]) -> None:
    """One call brings at most 1 MiB of results, or one result; the last one takes jobs, too."""
    jobs = [made(number, result_ms=60_000) for number in range(count)]
    for job in jobs:
        set_result(job, (b"x" * size, ""))
    worker, calls = Refusing(0, lambda *_: None), list[Any]()
    parts = [jobs] if is_chunk else [[job] for job in jobs]
    reports: Reports = {ACK: [Finished(part, ACK, 1.5) for part in parts]}
    flow = report(worker.state, worker.poll, reports, verdict=ACK, wanted=5)
    effect = next(flow, None)
    while effect is not None:
        call = cast(Any, effect).call
        calls.append(call)
        done = Settled(call.jobs)
        try:
            effect = flow.send(done if call.kind == "ack" else (done, Taken(-1, [])))
        except StopIteration:
            effect = None
    assert [len(call.jobs) for call in calls] == sizes
    assert [len(call.results.values) for call in calls] == sizes
    assert [call.kind for call in calls] == ["ack"] * (len(sizes) - 1) + ["settle"]
    assert [job for call in calls for job in call.jobs] == jobs
    values = [value for call in calls for value in call.results.values]
    assert {value[: value.index(b"x")] for value in values} == {b"1 1500 "}
    assert worker.state.statistics.snapshot().handling.count == len(parts)
    assert not reports


@pytest.mark.parametrize("spans", [(), (1.0, 2.0, 3.0)], ids=["chunk", "one by one"])
def test_the_time_of_jobs_with_different_outcomes(
    caplog: pytest.LogCaptureFixture, spans: tuple[float, ...]
) -> None:
    """The log has the time of each job, and the statistics count a run once."""
    caplog.set_level(logging.INFO, "penstock")
    worker = Refusing(3, lambda *_: None, log_jobs=True)
    seconds = 0.0 if spans else 4.0
    worker.reports = {ACK: [Finished(worker.jobs, ACK, seconds, spans)]}
    flow = report(worker.state, worker.poll, worker.reports, verdict=ACK)
    next(flow)
    with pytest.raises(StopIteration):
        flow.send(Settled(worker.jobs, [Outcome.DONE, Outcome.STALE, Outcome.DONE]))
    told = [one.getMessage().rpartition(" ")[0] for one in caplog.records]
    assert [text.rpartition(": ")[2] for text in told if "after" in text] == (
        ["done after 1", "done after 3"] if spans else ["done after 4"] * 2
    )
    assert worker.state.statistics.snapshot().handling.count == (len(spans) or 1)


def test_the_time_of_a_chunk_whose_jobs_fail_one_by_one() -> None:
    """The statistics count it once."""
    worker = Refusing(3, lambda kind, _: BAD if kind == "ack" else None)
    worker.reports = {ACK: [Finished(worker.jobs, ACK, 4.0)]}
    assert worker.report() is None
    assert worker.counts == {"retried": 3}
    assert worker.state.statistics.snapshot().handling.count == 1


def test_a_failure_that_is_refused_too() -> None:
    """The job is left to its lease, and the others are reported."""
    worker = Refusing(4, lambda _, n: BAD if n == 2 else None)
    assert worker.report() is None
    assert worker.reported == {"ack": [0, 1, 3]}
    assert worker.counts == {"done": 3, "lost": 1}
    assert not worker.reports
    assert not worker.state.held


def test_a_release_that_is_refused() -> None:
    """A job that has not begun does not fail by it."""
    worker = Refusing(1, lambda _kind, _n: BAD)
    worker.reports = {HANDED_BACK: [Finished(worker.jobs, HANDED_BACK, 0.0)]}
    assert worker.report() is None
    assert (worker.calls, worker.counts) == (1, {"lost": 1})


def test_a_chunk_larger_than_a_call_of_which_one_job_is_refused() -> None:
    """A chunk of 700 jobs is divided, too."""
    worker = Refusing(700, lambda kind, n: BAD if kind == "ack" and n == 650 else None)
    worker.reports = {ACK: [Finished(worker.jobs, ACK, 1.0)]}
    assert worker.report() is None
    assert len(worker.reported["ack"]) == 699
    assert worker.reported["nack"] == [650]
    assert not worker.reports


def test_many_reports_that_are_refused_one_by_one() -> None:
    """Each is a call of its own, as a hand-over is: all their jobs fail in one round."""
    worker = Refusing(40, lambda kind, _: BAD if kind == "bury" else None)
    worker.reports = {
        verdict: [Finished((job,), verdict, 0.0)]
        for job in worker.jobs
        for verdict in [Verdict("bury", text=str(job.body))]
    }
    assert worker.report() is None
    assert worker.reported == {"nack": list(range(40))}
    assert not worker.state.held


def test_reports_that_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """The log names each job. One that is delivered at most once is not dropped at the first
    refusal of its queue, as it has no lease.
    """
    worker = Refusing(2, lambda _kind, _n: DAMAGED)
    state, poll = worker.state, worker.poll
    state.unsettled, poll.failures, poll.error = {poll: worker.reports}, 1, DAMAGED
    set_term(worker.jobs[0], Term(99.0, 30.0))  # it has ended
    once = worker.jobs[1] = made(1, lease_ms=0, ttl_ms=60_000)
    worker.reports[ACK][1] = Finished((once,), ACK, 0.0)
    drop_expired(state)
    assert (worker.left, worker.counts) == ([1], {"lost": 1})
    for _ in range(MOST_REPORT_TRIES):
        assert worker.report() is DAMAGED
    drop_expired(state)
    assert (state.unsettled, worker.counts) == ({}, {"lost": 2})
    assert [record.job_id for record in caplog.records] == [job.id for job in worker.jobs]


def test_an_error_of_a_script_may_pass() -> None:
    """A report is repeated a few times before its job fails; the others are reported at once."""
    worker = Refusing(3, lambda kind, n: SCRIPT_ERROR if kind == "ack" and n == 0 else None)
    for _ in range(MOST_REPORT_TRIES - 1):
        assert worker.report() is SCRIPT_ERROR
        assert worker.left == [0]
        assert worker.reported == {"ack": [1, 2]}
    assert worker.report() is None
    assert worker.reported == {"ack": [1, 2], "nack": [0]}
    assert worker.texts == {f"ResponseError: {SCRIPT_ERROR}"}


def test_reports_wait_for_the_repair_of_a_queue() -> None:
    """A key of a wrong type fails no job: the report is made when the key is repaired."""
    damage: list[Exception | None] = [DAMAGED]
    worker = Refusing(1, lambda _kind, _n: damage[0])
    for _ in range(10 * MOST_REPORT_TRIES):
        assert worker.report() is DAMAGED
    damage[0] = None
    assert worker.report() is None
    assert worker.reported == {"ack": [0]}


def test_a_burst_does_not_wait_for_a_repair() -> None:
    """A burst drops a job that it can't report after a few attempts."""
    worker = Refusing(1, lambda _kind, _n: DAMAGED, burst=True)
    while worker.state.held and worker.calls < 20:
        worker.report()
    assert worker.counts == {"lost": 1}
    assert worker.calls == MOST_REPORT_TRIES + 1


def test_a_burst_gives_up_many_reports_together() -> None:
    """The number of rounds does not grow with the number of jobs."""
    worker = Refusing(100, lambda _kind, _n: DAMAGED, burst=True)
    for _ in range(MOST_REPORT_TRIES + 1):
        worker.report()
    assert worker.counts == {"lost": 100}
    assert worker.calls < 60


def test_a_queue_that_refuses_everything_gets_few_calls() -> None:
    """The calls of one round are bounded, and each round tries other jobs."""
    worker = Refusing(300, lambda _kind, _n: DAMAGED)
    tried = Counter[int]()
    refuse = worker._refuse

    def refused(kind: str, n: int) -> Exception | None:
        tried[n] += 1
        return refuse(kind, n)

    worker._refuse = refused
    assert worker.report() is DAMAGED
    assert worker.calls <= 16
    assert sorted(worker.left) == list(range(300))
    first = worker.left[0]
    assert worker.report() is DAMAGED
    assert worker.left[0] != first


def test_a_stopped_worker_does_not_wait_for_refused_reports() -> None:
    """With nothing but refused reports it is over at once; a running handler has its grace."""
    worker = Refusing(2, lambda _kind, n: DAMAGED if n == 1 else None)
    assert worker.report() is DAMAGED
    state = worker.state
    state.unsettled = {worker.poll: worker.reports}
    state.stop(60)
    assert state.is_over
    state.held[made("running")] = 0.0
    assert not state.is_over


def test_verdicts_of_refused_reports_are_failures() -> None:
    """Without a handler at hand the error itself is the text."""
    worker = Refusing(0, lambda _kind, _n: None)
    assert worker.state.fail_refused(made(1), BAD) == Verdict("nack", text=f"BadArgument: {BAD}")


@pytest.mark.parametrize(
    "error, waits",
    [
        (OutOfMemory("no memory"), True),
        (SCRIPT_ERROR, True),
        (DeliveryNotReplicated(1, 0, connected=0), True),
        (CannotSync("no append-only file"), False),
        (DAMAGED, False),
        (BAD, False),
    ],
    ids=["memory", "script", "replicas", "disk", "damage", "argument"],
)
def test_a_burst_waits_for_a_queue_whose_error_may_pass(error: Exception, waits: bool) -> None:
    """An error of a reserve ends a burst at once only if it lasts; the burst raises it then."""
    worker = Refusing(0, lambda _kind, _n: None, burst=True)
    leave_out(worker.state, worker.poll, error)
    assert worker.state.is_over is not waits
    assert worker.state.refusal is error
