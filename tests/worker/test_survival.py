"""Changes to a worker's queues and jobs by others: the worker continues with the rest."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from penstock import AsyncJob, AsyncWorker, Handlers, Penstock, Queue, Worker
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.values.policy import RetryPolicy
from penstock.embedded import EmbeddedServer
from penstock.errors import NotPermitted, QueueDamaged
from penstock.wire.keys import QueueKeys
from penstock.worker._sync import heartbeat
from penstock.worker.deliveries import begin_suspect, take_reply
from penstock.worker.dispatcher import Dispatcher
from penstock.worker.isolation import Isolator
from penstock.worker.options import WorkerOptions
from penstock.worker.polls import QueuePoll
from penstock.worker.results import HANDED_BACK, NO_REPORT, Verdict
from penstock.worker.state import WorkerState
from penstock.worker.suspects import PUT_ASIDE
from penstock.worker.terms import Term
from tests.support.backends import Backend
from tests.support.keyspace import Raw
from tests.support.twins import await_for, wait_for
from tests.worker.deliveries import stored


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """Use two back ends, as scripts are not tested here."""
    return brief_backend


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A plain client of `backend`."""
    return backend.sync_client()


@pytest.fixture
def ps(backend: Backend) -> Iterator[Penstock]:
    """A client of it."""
    with Penstock(backend.sync_client()) as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet."""
    return ps.queue("q")


class Gate:
    """A handler whose jobs with the body "old" wait until they may continue."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.lost: list[bool] = []
        self.open = threading.Event()

    def __call__(self, job: Any) -> None:
        self.bodies.append(job.body)
        if job.body == "old":
            assert self.open.wait(20)
        self.lost.append(job.lost)


def test_a_queue_is_recreated_while_its_worker_runs(ps: Penstock, q: Queue) -> None:
    """A job of the earlier epoch is lost; new ones run, and none runs twice."""
    q.enqueue("old", lease=1.2)
    gate = Gate()
    with Worker(ps, "q", gate, concurrency=2) as worker:
        wait_for(lambda: gate.bodies == ["old"])
        q.clear()
        q.enqueue("new", lease=1.2)
        wait_for(lambda: q.stats().acked == 1)
        gate.open.set()
        wait_for(lambda: worker.status().held == 0)
        q.enqueue_many(["more"] * 3)
        wait_for(lambda: q.stats().acked == 4)
    assert gate.bodies == ["old", "new", "more", "more", "more"]
    assert worker.status().stats.counts == {"done": 4, "lost": 1}


@pytest.mark.slow
def test_leases_of_two_epochs_are_renewed_separately(ps: Penstock, q: Queue) -> None:
    """Leases of two epochs are renewed separately, so the new job keeps its lease."""
    q.enqueue("old", lease=4)
    gate, both = Gate(), threading.Event()
    runs: list[Any] = []

    def handle(job: Any) -> None:
        if job.body == "old":
            gate(job)
            return
        runs.append(job)
        assert both.wait(20)

    with Worker(ps, "q", handle, concurrency=2):
        wait_for(lambda: gate.bodies == ["old"])
        q.clear()
        q.enqueue("new", lease=4)
        wait_for(lambda: len(runs) == 1)
        assert q.reserve(block=6) == []
        both.set()
        gate.open.set()
        wait_for(lambda: q.stats().acked == 1)
    assert (len(runs), runs[0].lost, gate.lost) == (1, False, [True])


def test_a_lease_that_can_not_be_renewed_is_logged_once(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says of a job whose lease has ended that it is lost, and why."""
    monkeypatch.setattr(heartbeat, "renew_leases", lambda *_: [])
    q.configure(lease=0.3)

    def handler(job: Any) -> None:
        wait_for(lambda: job.lost or job.deliveries > 1)

    q.enqueue("x")
    q.close()
    Worker(ps, "q", handler).run(signals=False)
    lost = [one.getMessage() for one in caplog.records if " is lost: " in one.getMessage()]
    assert [text.partition(": ")[2] for text in lost] == ["its lease was not renewed in time"]


def test_a_malformed_record(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A field that is not a number counts as not given, for the worker as for the scripts."""
    q.enqueue_many([b"x"] * 3)
    entry, fields = raw.xrange(q.ops.keys["ready"])[-1]
    ms, _, number = entry.partition(b"-")
    place = b"%s-%d" % (ms, int(number) + 1)
    raw.xadd(q.ops.keys["ready"], {next(iter(fields)): b"1;l=abc;t=x\nx"}, id=place)
    worker = Worker(ps, "q", lambda _: None, burst=True)
    worker.run()
    assert worker.status().stats.counts == {"done": 4}
    assert worker.status().held == 0


def test_an_exception_that_can_not_be_judged(ps: Penstock, q: Queue) -> None:
    """Its job fails by the general policy: a rule for exceptions does not concern it."""

    class Broken(Exception):
        @property
        def __class__(self) -> Any:
            raise Broken

    def fails() -> None:
        raise Broken

    rules = dict.fromkeys((Exception, RuntimeError), RetryPolicy(max_attempts=1))
    handlers = Handlers()
    handler = handlers.handler("fails", retry=RetryPolicy(base=600, on=rules))(fails)
    handler.enqueue(q)
    Worker(ps, q, handlers, burst=True).run()
    [view] = q.peek(state="scheduled")
    assert view.error == "UnclearError: the handler's exception could not be described"


@pytest.mark.parametrize("lease", [0.5, 0.7, 0], ids="{} s".format)
def test_damage_while_a_job_runs(ps: Penstock, q: Queue, raw: Raw, lease: float) -> None:
    """A job that can't be reported is dropped when its lease ends, and a burst ends with the error.

    The loop checks again half a second after the damage, so the heartbeat notices the end of the
    second lease. The third job has lease 0.
    """
    q.enqueue("old", lease=lease)
    gate = Gate()
    worker = Worker(ps, "q", gate, burst=True)
    worker.start()
    wait_for(lambda: gate.bodies == ["old"])
    for key in (q.ops.keys["active"], q.ops.keys["once"]):
        raw.delete(key)
        raw.set(key, b"x")
    gate.open.set()
    with pytest.raises(QueueDamaged):
        worker.join(30)
    assert worker.status().held == 0
    assert worker.status().stats.counts == {"lost": 1}


def test_a_burst_without_permissions(server: EmbeddedServer) -> None:
    """A burst raises the error of a queue that it can't use, after it has emptied the others."""
    with Penstock(server.url) as ps, redis.Redis.from_url(server.url) as raw:
        ps.queue("a").enqueue(1), ps.queue("b").enqueue(2)
        others = ("~penstock:{b}:*", "~penstock:[^{]*")
        raw.execute_command("ACL", "SETUSER", "w", "on", ">pw", "+@all", *others)
    done: list[int] = []
    url = server.url.replace("//", "//w:pw@")
    worker = Worker(url, ["a", "b"], lambda job: done.append(job.body), burst=True)
    with pytest.raises(NotPermitted):
        worker.run()
    assert done == [2]


def test_stats_of_a_damaged_queue(ps: Penstock, raw: Raw) -> None:
    """With a damaged key that only `stats` reads, jobs are run as usual."""
    a, b = ps.queue("a"), ps.queue("b")
    a.enqueue(1)
    raw.set(a.ops.keys["dead"], b"x")
    with Worker(ps, ["a", "b"], lambda _: None) as worker:
        b.enqueue_many(range(50))
        wait_for(lambda: worker.status().stats.counts.get("done") == 51)
        assert worker._life is not None
        assert worker._life.state.failures == 0


def test_a_worker_stays_healthy_during_a_long_throttle(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a long throttle the worker pings the server, so it stays healthy."""
    monkeypatch.setattr("penstock.worker.state.HEALTHY_SECONDS", 3.0)
    q.enqueue(1)
    with Worker(ps, "q", lambda _: None, throttle=60) as worker:
        wait_for(lambda: q.stats().acked == 1)
        for _ in range(3):
            wait_for(lambda: worker.status().answered > 0.7)
            wait_for(lambda: worker.status().answered < 0.3)
            assert worker.healthy()


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_cancelled_worker_with_a_damaged_queue(
    backend: Backend, ps: Penstock, raw: Raw, damaged: bool
) -> None:
    """Jobs of the undamaged queues are released."""
    a, b = ps.queue("a"), ps.queue("b")
    a.enqueue(1)
    b.enqueue(1)
    began: list[AsyncJob] = []

    async def handler(job: AsyncJob) -> None:
        began.append(job)
        await asyncio.sleep(60)

    async with backend.async_client() as client:
        worker = AsyncWorker(client, ["a", "b"], handler)
        running = asyncio.create_task(worker.run(signals=False))
        await await_for(lambda: len(began) == 2)
        if damaged:
            for kind in ("active", "scheduled"):
                raw.delete(a.ops.keys[kind])
                raw.set(a.ops.keys[kind], b"x")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (b.stats().ready, b.stats().active) == (1, 0)


class Runners:
    """A stand-in for runners that records its jobs."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> None:
        self.items.append(item)

    def waiting(self) -> int:
        return 0

    def drain(self) -> list[Any]:
        return []

    def warn_of_block(self, now: float) -> None: ...

    def lose(self, jobs: Any) -> None:
        for job in jobs:
            job.lost = True


class HandlerRunner:
    """A worker without its loop, with its started and released jobs."""

    def __init__(self) -> None:
        self.runners = Runners()
        handlers = Handlers()
        handlers.handler(None)(lambda _: None)
        self.poll = QueuePoll(QueueOps(QueueKeys("q", "penstock"), "me", ()))
        self.state = WorkerState(
            [self.poll],
            Dispatcher(handlers, self.runners, return_unknown=print, clock=time.monotonic),
            wake=lambda: None,
            clock=time.monotonic,
            options=WorkerOptions("q"),
        )

    def take(self, *jobs: Any) -> None:
        """Pass these deliveries to the worker."""
        take_reply(
            self.state, self.poll, Taken(-1, list(jobs)), wanted=len(jobs), sent=time.monotonic()
        )

    @property
    def begun(self) -> list[Any]:
        """Return the jobs given to runners."""
        return [job for _, jobs in self.runners.items for job in jobs]

    @property
    def back(self) -> list[tuple[Any, Verdict]]:
        """Return the jobs that are released without a run."""
        return [(job, done.verdict) for done in self.state.finished for job in done.jobs]


def suspects(count: int) -> list[Any]:
    """Return jobs that crashed twice."""
    return [stored(b"1\nx", b"3 0 2 0") for _ in range(count)]


def test_suspects_delivered_with_ordinary_jobs_are_released() -> None:
    """Suspects are released while other jobs of the delivery run; one crash is no suspect."""
    handler_runner, jobs = HandlerRunner(), suspects(2)
    ordinary = [stored(b"1\nx", counts) for counts in (b"", b"2 0 1 0")]
    handler_runner.take(jobs[0], *ordinary, jobs[1])
    assert handler_runner.begun == ordinary
    assert handler_runner.back == [(job, PUT_ASIDE) for job in jobs]


def test_a_suspect_in_a_worker_that_has_other_jobs_is_given_back() -> None:
    """A worker with other jobs releases a suspect, even if that comes alone."""
    handler_runner, jobs, ordinary = HandlerRunner(), suspects(1), stored(b"1\nx")
    handler_runner.take(ordinary)
    handler_runner.take(*jobs)
    assert handler_runner.begun == [ordinary]
    assert handler_runner.back == [(jobs[0], PUT_ASIDE)]


def test_a_suspect_without_a_handler_is_not_isolated() -> None:
    """A suspect without a handler goes to the dispatcher and becomes a dead letter."""
    unknown: list[Any] = []
    handlers = Handlers()
    handlers.handler("known")(lambda: None)
    poll = QueuePoll(QueueOps(QueueKeys("q", "penstock"), "me", ()))
    state = WorkerState(
        [poll],
        Dispatcher(handlers, Runners(), return_unknown=unknown.append, clock=time.monotonic),
        wake=lambda: None,
        clock=time.monotonic,
        options=WorkerOptions("q"),
    )
    state.isolator = Isolator("app:worker", {}, state)
    job = stored(b"1;h.handler=strange\nx", b"3 0 2 0")
    take_reply(state, poll, Taken(-1, [job]), wanted=1, sent=time.monotonic())
    assert unknown == [job]
    assert state.isolator.running == ()


def test_one_of_several_suspects_runs_alone() -> None:
    """An idle worker runs the first suspect, when the server counts it as started."""
    handler_runner, jobs = HandlerRunner(), suspects(3)
    handler_runner.take(*jobs)
    assert (handler_runner.begun, handler_runner.state.suspects.waits) == ([], True)
    assert handler_runner.back == [(job, PUT_ASIDE) for job in jobs[1:]]
    begin_suspect(handler_runner.state, Term(time.monotonic() + 30, 30.0))
    assert (handler_runner.begun, handler_runner.state.suspects.waits) == (jobs[:1], False)


def test_a_suspect_that_is_lost_before_it_begins_does_not_run() -> None:
    """A suspect that another worker took does not run."""
    handler_runner, jobs = HandlerRunner(), suspects(1)
    handler_runner.take(*jobs)
    begin_suspect(handler_runner.state, None)
    assert (handler_runner.begun, handler_runner.back, jobs[0].lost) == (
        [],
        [(jobs[0], NO_REPORT)],
        True,
    )
    assert not handler_runner.state.suspects.waits


def test_a_suspect_that_has_not_begun_is_given_back_at_a_stop() -> None:
    """At a stop a suspect that has not started is released."""
    handler_runner, jobs = HandlerRunner(), suspects(1)
    handler_runner.take(*jobs)
    handler_runner.state.stop()
    handler_runner.state.begin_round()
    assert handler_runner.back == [(jobs[0], HANDED_BACK)]
    assert (handler_runner.begun, handler_runner.state.suspects.waits) == ([], False)


def test_a_second_signal_inside_of_stop() -> None:
    """A signal during `stop` applies the shorter grace."""
    handlers = Handlers()
    handlers.handler(None)(lambda _: None)
    calls: list[Callable[[], None]] = []
    state = WorkerState(
        [],
        Dispatcher(handlers, Runners(), return_unknown=print, clock=lambda: 100.0),
        wake=lambda: calls.pop()() if calls else None,
        clock=lambda: 100.0,
        options=WorkerOptions("q", grace=25),
    )
    calls.append(lambda: state.stop(0))
    state.stop()
    assert state.deadline == 100.0


def test_jobs_are_taken_while_the_heartbeat_looks_at_the_held_ones() -> None:
    """The loop may run whenever memory is allocated: garbage collection can run any code."""
    held: dict[object, float] = {object(): math.inf for _ in range(5000)}
    state: Any = SimpleNamespace(held=held, suspects=SimpleNamespace(unbegun=()))
    beat = heartbeat.Heartbeat(state, cast(Any, None), name="leases")

    def take(_phase: str, _info: dict[str, int]) -> None:
        held[object()] = math.inf

    often = gc.get_threshold()
    gc.callbacks.append(take)
    gc.set_threshold(1)
    try:
        beat._ask_for_cancelled()
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(take)
    assert len(held) > 5000


class Overdue:
    """The heartbeat of a worker that holds a job and should have ended, with the steps it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.answer: Callable[[], None] = lambda: None
        worker = HandlerRunner()
        worker.take(stored(b"1\nx"))
        worker.state.stop(-60)
        registration: Any = SimpleNamespace(at=0.0, renew=self._register)
        topology: Any = SimpleNamespace(
            executor=SimpleNamespace(twin=lambda **_: None), config=SimpleNamespace(prefix="")
        )
        self.beat = heartbeat.Heartbeat(
            worker.state, topology, name="leases", registration=registration, overdue=print
        )
        self.beat._ask_at = math.inf
        driver = SimpleNamespace(drive=lambda _: self.steps.append("released"))
        monkeypatch.setattr(heartbeat, "Driver", lambda *_: driver)
        monkeypatch.setattr(heartbeat, "ops_of", lambda _: worker.poll.ops)
        monkeypatch.setattr(heartbeat, "due", lambda jobs, _: [(30.0, jobs)] if jobs else [])
        monkeypatch.setattr(heartbeat, "renew_leases", self._renew)

    def _renew(self, *_: Any) -> list[Any]:
        self.steps.append("renewed")
        self.answer()
        return []

    def _register(self, nodes: list[Any]) -> None:
        self.steps += ["registered"] * len(nodes)


def test_a_closed_heartbeat_ends_after_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call may wait seconds for a silent server, and the end of the worker waits for it."""
    told = Overdue(monkeypatch)
    told.answer = told.beat.close
    told.beat.beat()
    assert told.steps == ["renewed"]


@pytest.mark.parametrize(
    "error, steps",
    [
        (redis.TimeoutError("silent"), ["renewed"]),
        (QueueDamaged("one queue"), ["renewed", "registered", "released"]),
    ],
    ids=["silent", "damaged"],
)
def test_a_silent_server_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, steps: list[str]
) -> None:
    """A heartbeat whose renewal got no answer makes no other call until it tries that again."""
    told = Overdue(monkeypatch)

    def fail() -> None:
        raise error

    told.answer = fail
    told.beat.beat()
    assert told.steps == steps
