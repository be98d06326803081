"""Follow-ups: a death adds a job of the handler that the dead job names, once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncWorker,
    BadArgument,
    Dedup,
    Handlers,
    Job,
    Penstock,
    Queue,
    QueueClosed,
    Reject,
    RetryPolicy,
    Worker,
)
from penstock.core.jobs.record import parse_record
from penstock.embedded import EmbeddedServer
from tests.support.backends import Backend
from tests.support.keyspace import advance, check_invariant
from tests.support.workers import until
from tests.worker.programs import Program, Told
from tests.worker.support import Crew

ONCE = RetryPolicy(max_attempts=1)


def run(client: Penstock, handlers: Handlers) -> None:
    """Run a worker until the queue is empty."""
    Worker(client, "work", handlers, burst=True).run()


def test_a_death_adds_a_job_of_the_handler(brief_backend: Backend) -> None:
    """It gets the arguments of the dead job, and knows its id, handler, error and failures."""
    handlers, seen = Handlers(), list[Any]()

    @handlers.handler
    def refund(job: Job, order: int, card: str = "-") -> None:
        seen.append((order, card, job.death, job.attempt))

    @handlers.handler(on_dead=refund, retry=ONCE)
    def charge(order: int, card: str = "-") -> None:
        raise ValueError(f"card {card}; 100% =\\ é\n")

    raw = brief_backend.sync_client()
    with Penstock(raw) as client:
        queue = client.queue("work")
        added = charge.options(ttl=3600).enqueue(queue, 7, card="x" * 5000)
        run(client, handlers)
        [(order, card, death, attempt)] = seen
        assert (order, len(card), attempt) == (7, 5000, 1)
        assert (death.id, death.handler, death.failures) == (added.id, "charge", 1)
        assert death.error.startswith("ValueError: card xxx")
        assert death.left_out == 0
        letter = queue.show(added.id)
        assert letter is not None
        assert (letter.state, letter.on_dead, letter.death) == ("dead", "refund", None)
        assert letter.follow_up is not None
        assert (queue.stats().enqueued, queue.stats().acked) == (2, 1)
        assert queue.show(letter.follow_up) is None  # it is done
        check_invariant(raw)


def test_a_handler_for_all_of_a_set(brief_backend: Backend) -> None:
    """It gets whole jobs, of handlers before and behind it; its own death adds none."""
    handlers, seen = Handlers(), list[Any]()

    @handlers.handler(retry=ONCE)
    def before(n: int) -> None:
        raise ValueError("before")

    @handlers.on_dead(retry=ONCE)
    def tell(job: Job) -> None:
        seen.append((job.death and job.death.handler, job.body))
        raise Reject("no one to tell")

    @handlers.handler(retry=ONCE)
    def behind(n: int) -> None:
        raise Reject("behind")

    @handlers.handler(on_dead=None, retry=ONCE)
    def silent() -> None:
        raise ValueError("silent")

    @handlers.handler
    def refund(job: Job, n: int) -> None:
        seen.append((job.death and job.death.handler, "refunded"))

    @handlers.handler("own", on_dead=refund, retry=ONCE)
    def charge(n: int) -> None:
        raise ValueError("own")

    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        for job in (before.job(1), behind.job(2), silent.job(), charge.job(3)):
            queue.enqueue(job)
        run(client, handlers)
        assert sorted(seen, key=str) == [
            ("before", {"n": 1}),
            ("behind", {"n": 2}),
            ("own", "refunded"),
        ]
        assert queue.stats().died == 6
        assert [job.id for job in queue.jobs("ready")] == []


def test_a_redriven_job_that_dies_again(brief_backend: Backend) -> None:
    """It adds another job: this is a new death. The dead letter names the last one."""
    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        added = queue.enqueue("a", on_dead="told")
        queue.bury(queue.reserve(), "first")
        first = queue.show(added.id)
        [told] = queue.reserve()
        assert told.death is not None
        told.ack()
        queue.redrive([added.id])
        queue.bury(queue.reserve(), "second")
        second = queue.show(added.id)
        assert first
        assert second
        assert first.follow_up == told.id != second.follow_up
        [again] = queue.reserve()
        assert (again.id, again.death and again.death.error) == (second.follow_up, "second")
        assert again.body == "a"


def test_jobs_that_die_together(brief_backend: Backend) -> None:
    """Each that names a handler adds a job, in their order; small and large bodies are copied."""
    raw = brief_backend.sync_client()
    with Penstock(raw) as client:
        queue = client.queue("work")
        bodies = ["a", "b" * 5000, b"c", "d" * 600_000, "e" * 600_000]
        for body in bodies:
            queue.enqueue(body, on_dead="told")
            queue.enqueue("other")
        queue.bury(queue.reserve(9) + queue.reserve(9), "no")
        told = queue.reserve(9) + queue.reserve(9, block=0)
        assert [job.body for job in told] == [*bodies[:4], b""]
        assert [job.death and job.death.left_out for job in told] == [0, 0, 0, 0, 600_002]
        queue.ack(told)
        queue.purge("dead")
        assert raw.exists("penstock:{work}:held") == 0


def test_many_small_bodies(brief_backend: Backend) -> None:
    """All are copied, however many jobs die in a call."""
    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        queue.enqueue_many(["a" * 4000] * 300, on_dead="told")
        queue.bury(queue.reserve(300) + queue.reserve(300), "no")
        told = queue.reserve(300) + queue.reserve(300)
        assert [job.death and job.death.left_out for job in told] == [0] * 300
        assert {job.body for job in told} == {"a" * 4000}


def test_callbacks_that_die_in_one_call(brief_backend: Backend) -> None:
    """The bound of large bodies is one for all deaths of a call, of members' batches too."""
    raw = brief_backend.sync_client()
    with Penstock(raw) as client:
        queue = client.queue("work")
        for letter in "abc":
            queue.batches.open(then=letter * 600_000, on_failure="told").__enter__()
        advance(raw, queue.route.ops, 3601)
        told = queue.reserve(9) + queue.reserve(9, block=0)
        assert [job.death and job.death.left_out for job in told] == [0, 600_002, 600_002]


@pytest.mark.parametrize("has_arguments", [True, False])
def test_a_body_that_was_left_out(has_arguments: bool, brief_backend: Backend) -> None:
    """A handler with arguments becomes a dead letter whose error says so; another one runs."""
    handlers, seen = Handlers(), list[Any]()
    if has_arguments:

        @handlers.handler
        def refund(job: Job, text: str) -> None:
            seen.append(job.death)

    else:

        @handlers.on_dead("refund")
        def alarm(job: Job) -> None:
            seen.append(job.death)

    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        queue.enqueue({"text": "a" * 1_100_000}, on_dead="refund")
        queue.bury(queue.reserve(), "no")
        run(client, handlers)
        errors = [job.error for job in queue.jobs("dead", handler="refund")]
    if has_arguments:
        assert (seen, len(errors)) == ([], 1)
        assert "the body of 1100011 bytes was left out, see job.death" in errors[0]
    else:
        assert (errors, [death.left_out for death in seen]) == ([], [1_100_011])


def test_ends_that_are_no_deaths(brief_backend: Backend) -> None:
    """A job that is done, cancelled, deleted or expired adds none."""
    raw = brief_backend.sync_client()
    with Penstock(raw) as client:
        queue = client.queue("work")
        names = [queue.enqueue(n, on_dead="told", ttl=60).id for n in range(4)]
        queue.ack(queue.reserve(1))
        queue.cancel(names[1:2])
        queue.delete(names[2:3])
        advance(raw, queue.route.ops, 61)
        assert queue.reserve(block=0) == []
        assert queue.stats().enqueued == 4


def test_an_update_keeps_the_handler(brief_backend: Backend) -> None:
    """An update by dedup id without one keeps it; one that has one replaces it."""
    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        update = Dedup("a", on_duplicate="update")
        name = queue.enqueue(1, dedup=update, on_dead="first, %").id
        queue.enqueue(2, dedup=update, retry=RetryPolicy(max_attempts=7))
        kept = queue.show(name)
        queue.enqueue(3, dedup=update, on_dead="second", priority=3)
        replaced = queue.show(name)
        assert kept
        assert replaced
        assert (kept.on_dead, kept.retry) == ("first, %", RetryPolicy(max_attempts=7))
        assert (replaced.on_dead, replaced.priority) == ("second", 3)
        assert replaced.retry == kept.retry


def test_a_full_closed_and_ordered_queue(brief_backend: Backend) -> None:
    """A death fails for none of these; the added job has the key, and its turn."""
    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        queue.configure(ordered=True, max_length=2)
        for n in (1, 2):
            queue.enqueue(n, key="a", on_dead="told")
        queue.close()
        queue.bury(queue.reserve(5), "no")
        bodies = []
        for _ in range(2):
            jobs = queue.reserve(5)
            bodies += [(job.body, job.death is not None) for job in jobs]
            queue.ack(jobs)
        assert bodies == [(2, False), (1, True)]
        with pytest.raises(QueueClosed):
            queue.reserve()


@pytest.mark.parametrize(
    "value, reason",
    [
        ("", "must be printable text that is not empty"),
        ("x" * 201, "must have at most 200 bytes"),
        (7, "must be a handler, or the name of one: on_dead=refund"),
        (Handlers().handler(None)(print), "has no name"),
    ],
)
def test_bad_handlers(value: Any, reason: str) -> None:
    """The error names the argument, the value and the way out."""
    with pytest.raises(BadArgument, match=f"on_dead=.*{reason}"):
        Handlers().handler("a", on_dead=value)(lambda: None)


def test_a_job_that_never_dies_is_refused(brief_backend: Backend) -> None:
    """A job that is delivered at most once can't have it."""
    with (
        Penstock(brief_backend.sync_client()) as client,
        pytest.raises(BadArgument, match=r"at most once .* has no death"),
    ):
        client.queue("work").enqueue(1, lease=0, on_dead="told")


def test_a_second_handler_for_all_is_refused() -> None:
    """A set has one."""
    handlers = Handlers()
    handlers.on_dead("a")(print)
    with pytest.raises(BadArgument, match="the set has one"):
        handlers.on_dead("b")(print)
    with pytest.raises(BadArgument, match="name it"):
        handlers.on_dead(None)  # type: ignore[call-overload]
    assert [one.name for one in handlers] == ["a"]


def test_a_handler_for_all_and_jobs_without_deaths(brief_backend: Backend) -> None:
    """Jobs with lease=0 leave it out, wherever that was given; one that was named is refused."""
    handlers = Handlers()
    handlers.on_dead("tell")(print)

    @handlers.handler(lease=0)
    def once() -> None: ...

    @handlers.handler
    def usual() -> None: ...

    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        jobs = [
            once.enqueue(queue),
            usual.options(lease=0).enqueue(queue),
            queue.enqueue(usual.job(), lease=0),
            once.options(lease=5).enqueue(queue),
            usual.options(on_dead=None).enqueue(queue),
            usual.enqueue(queue),
        ]
        views = [queue.show(job.id) for job in jobs]
        assert [view and view.on_dead for view in views] == [None, None, None, "tell", None, "tell"]
        with pytest.raises(BadArgument, match="has no death"):
            once.options(on_dead="told")


@pytest.mark.parametrize("is_first", [True, False])
def test_an_included_set(is_first: bool) -> None:
    """Its handlers that have none get that of the set, in any order; others keep theirs."""
    handlers, part, other = Handlers(), Handlers(), Handlers()
    part.handler("charge")(lambda: None)
    part.handler("silent", on_dead=None)(lambda: None)
    part.handler("own", on_dead="refund")(lambda: None)
    other.handler("ship")(lambda: None)
    other.on_dead("alarm")(print)
    if is_first:
        handlers.on_dead("tell")(print)
    handlers.include(part)
    handlers.include(other)
    if not is_first:
        handlers.on_dead("tell")(print)
    records = {one.name: one.job(*[{}][: one.is_whole]).options.prepared(None) for one in handlers}
    told = {name: parse_record(record.record({})).on_dead for name, record in records.items()}
    assert told == {
        "charge": "tell", "silent": "", "own": "refund", "ship": "alarm", "alarm": "", "tell": "",
    }  # fmt: skip


def test_a_handler_of_another_queue() -> None:
    """Its job would be where the dead letter is, so it is refused, and nothing is changed."""
    handlers, own = Handlers(), Handlers(queue="own")
    there = handlers.handler("there", queue="there")(lambda: None)
    here = handlers.handler("here", queue="here")(lambda: None)
    reason = "on_dead=.*is for jobs of queue 'there', and .* in 'here', .*: leave out its queue"
    for refused in (
        lambda: handlers.handler("a", queue="here", on_dead=there)(lambda: None),
        lambda: here.options(on_dead=there),
    ):
        with pytest.raises(BadArgument, match=reason):
            refused()
    handlers.handler("same", queue="there", on_dead=there)(lambda: None)
    handlers.handler("free", on_dead=there)(lambda: None)
    own.on_dead("tell")(print)
    with pytest.raises(BadArgument, match="queue 'own'"):
        own.include(handlers)
    assert [one.name for one in own] == ["tell"]
    late = Handlers(queue="own")
    late.include(handlers)
    with pytest.raises(BadArgument, match="queue 'own'"):
        late.on_dead("tell")(print)
    assert "tell" not in [one.name for one in late]


async def test_coroutines(brief_backend: Backend) -> None:
    """An AsyncWorker runs both."""
    handlers, seen = Handlers(), list[Any]()

    @handlers.on_dead
    async def tell(job: AsyncJob) -> None:
        await asyncio.sleep(0)
        seen.append((job.death and job.death.error, job.body))

    @handlers.handler(retry=ONCE)
    async def charge(order: int) -> None:
        raise ValueError("no")

    async with brief_backend.async_client() as lent, AsyncPenstock(lent) as client:
        queue = client.queue("work")
        await charge.enqueue(queue, 7)
        await AsyncWorker(client, "work", handlers, burst=True).run()
    assert seen == [("ValueError: no", {"order": 7})]


@pytest.mark.parametrize("kind", ["thread", pytest.param("asyncio", marks=pytest.mark.slow)])
def test_a_job_that_kills_its_workers(kind: str, crew: Crew, queue: Queue) -> None:
    """The reserve of another worker decides on its death, and adds the job once."""
    queue.configure(lease=0.5, max_crashes=2)
    queue.enqueue({"n": 1, "do": "die"}, on_dead="told")
    for n in range(2):
        victim = crew.start(kind, concurrency=1, patient=False, name=f"victim-{n}")
        victim.child.wait()
        assert victim.child.killed
    others = [crew.start(kind, concurrency=1) for _ in range(2)]
    until(lambda: queue.stats().dead == 1)
    queue.enqueue({"n": 2, "do": "no"})
    crew.diary.wait("end", n=2)
    for other in others:
        other.signal(signal.SIGTERM)
        other.ended()
    [told] = queue.jobs(handler="told")
    assert told.death is not None
    assert (told.death.failures, told.body["n"]) == (2, 1)
    assert queue.stats().enqueued == 3


APP = """
import os
from penstock import Handlers, Job, Penstock, RetryPolicy, Worker
import redis

URL = os.environ["APP_REDIS"]
raw = redis.Redis.from_url(URL)
handlers = Handlers()

def tell(what):
    raw.rpush("told", f"{os.environ['PENSTOCK_PROCESS']} {os.getpid()} - {what}")

@handlers.on_dead
def dead(job: Job):
    tell(f"{job.death.handler} {job.body['n']} {job.death.failures}")

@handlers.handler
def charge(n: int):
    tell("begun")
    os.kill(os.getpid(), 9)

client = Penstock(URL)
worker = Worker(client, "jobs", handlers, concurrency=1)
"""


@pytest.mark.slow
def test_processes_that_are_killed(
    worker: Callable[..., Program], app: Path, told: Told, server: EmbeddedServer
) -> None:
    """Each process of a supervisor that runs the job is killed; the job is told of once."""
    app.write_text(APP)
    with Penstock(server.url) as client:
        jobs = client.queue("jobs")
        jobs.configure(lease=3600, max_crashes=2)
        jobs.enqueue({"n": 7}, headers={"handler": "charge"}, on_dead="dead")
        worker("--processes", "2")
        told.until("begun"), told.until("begun")
        told.until("charge 7 2")
        until(lambda: jobs.stats().acked == 1)
        assert (jobs.stats().dead, jobs.stats().enqueued) == (1, 2)


def refund_nothing(job: Job) -> None:
    """Take no argument."""


def refund_more(job: Job, order: int, card: str) -> None:
    """Take one more argument."""


def refund_any(job: Job, **arguments: Any) -> None:
    """Take any argument."""


def charge_once(order: int) -> None:
    """Take one argument."""


def refund_less(order: int, reason: str = "") -> None:
    """Take the arguments that each job has."""


@pytest.mark.parametrize(
    "follower, fault",
    [(refund_nothing, "does not take 'order'"), (refund_more, "needs 'card', which no job has")],
)
def test_a_handler_that_could_not_be_called(
    follower: Any, fault: str, brief_backend: Backend
) -> None:
    """It is refused when it is named, as each of its jobs would die too; the error says more."""
    handlers = Handlers()
    refund = handlers.handler("refund")(follower)
    with pytest.raises(BadArgument) as caught:

        @handlers.handler(on_dead=refund)
        def charge(order: int, note: str = "") -> None: ...

    way = "def refund(job: Job, order, note=''), or @handlers.on_dead"
    assert f"{fault}; it gets the arguments of the dead job: {way}" in str(caught.value)
    assert [one.title for one in handlers] == ["refund"]
    charged = handlers.handler("charge")(charge_once)
    with pytest.raises(BadArgument, match=fault):
        charged.options(on_dead=refund)
    for fits in (refund_any, refund_less):
        charged.options(on_dead=Handlers().handler("fits")(fits))
    with Penstock(brief_backend.sync_client()) as client:
        queue = client.queue("work")
        for body in (charged.job(1), "x"):
            with pytest.raises(BadArgument, match=r"on_failure=.*does not fit"):
                queue.batch(then=body, on_failure=refund)
        assert client.queues() == []


def test_a_name_that_the_worker_does_not_know(
    brief_backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be that of a handler of another program: a worker warns of it at its start."""
    handlers = Handlers()

    @handlers.handler(on_dead="refnd")
    def charge(order: int) -> None: ...

    @handlers.handler(on_dead="charge")
    def refund(order: int) -> None: ...

    with Penstock(brief_backend.sync_client()) as client:
        run(client, handlers)
    told = "on_dead='refnd' of handler 'charge': this worker has no such handler"
    assert [text for text in caplog.messages if "on_dead" in text] == [
        f"{told} (did you mean 'refund'?)"
    ]
