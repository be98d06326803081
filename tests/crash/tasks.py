"""Tasks of the crash tests' child processes, which are to be killed.

A task reports what it attempts before it does it, and the result afterwards.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from penstock import (
    Done,
    Handlers,
    IncompleteEnqueue,
    Job,
    Outcome,
    Penstock,
    PenstockError,
    Queue,
    Worker,
)
from penstock.client._acompat import send
from penstock.client.sockets import Socket
from penstock.wire.scripts import script
from tests.support.workers import Log, await_word, die, tell

__all__ = [
    "QUEUE",
    "SCRIPTS",
    "STEPS",
    "STEPS_AFTER_RUN",
    "batched",
    "consume",
    "consume_in_order",
    "handed_over",
    "in_batches",
    "killed",
    "produce",
    "scheduled",
    "script_of",
    "struck",
    "tick",
    "ticked",
    "worked",
]

QUEUE = "crash"
STEPS = ("before", "torn", "sent", "answered", "read")
"""Steps of a call: before it is sent, partly sent, sent but not run, run with the reply unread,
reply read but not processed.
"""
STEPS_AFTER_RUN = ("sent", "answered", "read")
CHUNK = 4
SCRIPTS = {"enqueue": ("enqueue", 0), "enqueue_many": ("enqueue", 1)}
"""Scripts of the operations that add jobs, and which of their calls is struck."""


def script_of(operation: str) -> tuple[str, int]:
    """Return the script of an operation, and which of its calls is struck."""
    return SCRIPTS.get(operation, (operation, 0))


def set_chunk(size: int) -> None:
    """Make a bulk enqueue send this many jobs per call."""
    chunks: Any = importlib.import_module("penstock.core.enqueuing.chunks")
    chunks.BATCH = size


def struck(
    operation: str, step: str, which: int, halt: Callable[[], None], strike: Callable[[], None]
) -> Callable[..., Any]:
    """Return a replacement of `Socket.trip` that acts at one step of one call.

    Args:
        operation: a script.
        step: one of STEPS, or `reading`: struck while it waits for its reply.
        which: the first call of the operation is number 0.
        halt: what to do before the call is sent.
        strike: what to do at the step.
    """
    sha = script(operation).sha.encode()
    trip = Socket.trip
    seen = itertools.count()

    def made(own: Any, packed: bytes = b"") -> Any:
        if sha not in packed or next(seen) != which:
            return trip(own, packed)
        conn = own._conn
        halt()
        if step == "before":
            strike()
        if step == "torn":
            conn.connect()
            conn._sock.sendall(packed[: len(packed) // 2])
            strike()
        send(conn, packed)
        if step in ("sent", "reading"):
            strike()
        if step == "answered":
            conn.can_read(timeout=30)
            strike()
        reply = trip(own)
        if step == "read":
            strike()
        return reply

    return made


def killed(url: str, operation: str, step: str, bodies: list[str]) -> None:
    """Run an operation and die at one of its steps.

    Args:
        url: of the server.
        operation: enqueue, enqueue_many, reserve, ack or settle.
        step: one of STEPS.
        bodies: what a producer adds.
    """
    queue = Penstock(url).queue(QUEUE)
    queue.stats()
    held = queue.reserve(1, block=0) if operation in ("ack", "settle") else []
    set_chunk(CHUNK)
    name, which = script_of(operation)

    def halt() -> None:
        tell({"held": [job.body.decode() for job in held]})
        await_word()  # the server is frozen by now if it is to run the call after the death

    patched: Any = Socket
    patched.trip = struck(name, step, which, halt, die)
    if operation == "enqueue":
        queue.enqueue(bodies[0].encode())
    elif operation == "enqueue_many":
        queue.enqueue_many(body.encode() for body in bodies)
    elif operation == "reserve":
        queue.reserve(1, block=0)
    elif operation == "ack":
        queue.ack(held)
    else:
        queue.ack_and_reserve(held, 1)
    raise AssertionError("still alive")


def ticked(url: str | list[str], step: str) -> None:
    """Work on a queue with a due tick, and die at one step of running it."""
    patched: Any = Socket
    patched.trip = struck("tick", step, 0, lambda: None, die)
    _ticking(url, lambda *_: None).run()


def handed_over(url: str, script_name: str, step: str) -> None:
    """Work on jobs that hand over to another one, and die at one step of a script."""
    patched: Any = Socket
    patched.trip = struck(script_name, step, 0, lambda: None, die)
    Worker(url, QUEUE, handing_over(lambda *_: None)).run()


def handing_over(note: Callable[..., None]) -> Handlers:
    """Return handlers of which `first` hands over to `then` in its queue, and in another one."""
    handlers = Handlers()

    @handlers.handler("then")
    def then(number: int) -> None:
        note("then", number)

    @handlers.handler("there", queue="other")
    def there(number: int) -> None:
        note("there", number)

    @handlers.handler("first")
    def first(number: int) -> Any:
        return Done(then=[then.job(number), there.job(number)])

    return handlers


def batched(url: str, log: str, script_name: str, step: str) -> None:
    """Add a batch of three jobs, and die at one step of a script."""
    patched: Any = Socket
    patched.trip = struck(script_name, step, 0, lambda: None, die)
    _, member, summary = in_batches(Log(log).write)
    with Penstock(url).queue(QUEUE).batch(then=summary.job()) as batch:
        batch.enqueue_many([member.job(number) for number in range(3)])


def worked(url: str, log: str, script_name: str, step: str) -> None:
    """Work on the jobs of a batch, and die at one step of a script."""
    patched: Any = Socket
    patched.trip = struck(script_name, step, 0, lambda: None, die)
    handlers, *_ = in_batches(Log(log).write)
    Worker(url, QUEUE, handlers, concurrency=1).run()


def linked(url: str, log: str, script_name: str, step: str) -> None:
    """Work on the jobs of a chain, and die at one step of a script."""
    patched: Any = Socket
    patched.trip = struck(script_name, step, 0, lambda: None, die)
    handlers, _ = in_chain(Log(log).write)
    Worker(url, QUEUE, handlers, concurrency=1).run()


def in_chain(note: Callable[..., None]) -> tuple[Handlers, Any]:
    """Return handlers, and one that counts up."""
    handlers = Handlers()

    @handlers.handler("count")
    def count(job: Job, number: int) -> int:
        note("count", number, job.id)
        return number + 1

    return handlers, count


def in_batches(note: Callable[..., None]) -> tuple[Handlers, Any, Any]:
    """Return handlers, that of the jobs of a batch, and that of its callback."""
    handlers = Handlers()

    @handlers.handler("member")
    def member(job: Job, number: int) -> None:
        note("member", number, job.id)

    @handlers.handler("summary")
    def summary(job: Job) -> None:
        note("summary", "-", job.id)

    return handlers, member, summary


def scheduled(urls: list[str], step: str) -> None:
    """Create a schedule on one of several nodes, and die at one step of the write."""
    queue = Penstock(urls).queue(QUEUE)
    queue.schedules.list()
    patched: Any = Socket
    patched.trip = struck("schedule", step, 0, lambda: None, die)
    queue.schedules.add("s", every=3600, job="x")


def tick(url: str, log: str) -> None:
    """Run ticks and their jobs until killed."""
    _ticking(url, Log(log).write).run()


def _ticking(url: str | list[str], note: Callable[..., None]) -> Worker:
    handlers = Handlers()

    @handlers.default
    def record(job: Job) -> None:
        note(job.id, int((job.scheduled_for or 0) * 1000))

    return Worker(url, QUEUE, handlers)


# -- loops, killed at any time -------------------------------------------------------------------


def produce(url: str, log: str, name: str) -> None:
    """Add jobs forever, singly and in bulk, ready and delayed; wait for room."""
    out = Log(log)
    set_chunk(50)
    queue = Penstock(url, retry_for=10).queue(QUEUE)
    for serial in itertools.count():
        bodies = [f"{name}.{serial}.{i}" for i in range(random.choice((1, 1, 1, 120)))]
        delay = random.choice((0, 0, 0, 0.05))
        out.write("attempted", *bodies)
        with suppress(RedisError, PenstockError):
            if len(bodies) == 1:
                queue.enqueue(bodies[0].encode(), delay=delay, block=1)
                count = 1
            else:
                count = add_many(queue, bodies, delay)
            out.write("accepted", *bodies[:count])


def add_many(queue: Queue, bodies: list[str], delay: float) -> int:
    """Add jobs in chunks, and return the number of accepted ones."""
    try:
        return len(queue.enqueue_many((body.encode() for body in bodies), delay=delay))
    except IncompleteEnqueue as error:
        return len(error.results)


def consume(url: str, log: str) -> None:
    """Reserve jobs forever, and finish, fail or release them."""
    out = Log(log)
    queue = Penstock(url, retry_for=10).queue(QUEUE)
    jobs: list[Job] = []
    while True:
        with suppress(RedisError, PenstockError):
            mine, jobs = jobs, []
            back = [mine.pop()] if mine and random.random() < 0.3 else []
            for job in mine:
                out.write("acking", job.body.decode())
            if not mine:
                jobs = queue.reserve(20, block=0.5)
            elif random.random() < 0.5:
                outcomes, jobs = queue.ack_and_reserve(mine, 20)
                note_acked(out, mine, outcomes)
            else:
                note_acked(out, mine, queue.ack(mine))
            for job in jobs:
                out.write("got", job.body.decode(), job.id, job.deliveries)
            if random.random() < 0.5:
                queue.nack(back, delay=0.01)
            else:
                queue.release(back, delay=0.01)


def consume_in_order(url: str, log: str, *, dies: bool = False) -> None:
    """Reserve single jobs of an ordered queue forever; finish, fail or release them.

    Args:
        url: of the server.
        log: a file.
        dies: die with the first job in hand.
    """
    out = Log(log)
    queue = Penstock(url, retry_for=10).queue(QUEUE)
    while True:
        with suppress(PenstockError):
            for job in queue.reserve(1, block=0.5):
                out.write("begun", job.body.decode(), job.deliveries)
                if dies:
                    die()
                chance = random.random()
                out.write("ending", job.body.decode(), job.deliveries)
                if chance < 0.2:
                    job.nack(delay=random.choice((0, 0.01)))
                elif chance < 0.3:
                    job.release(delay=random.choice((0, 0.01)))
                else:
                    job.ack()


def note_acked(out: Log, jobs: list[Job], outcomes: Iterable[Outcome]) -> None:
    """Record the jobs that were certainly acknowledged."""
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome is Outcome.DONE:
            out.write("acked", job.body.decode(), job.deliveries)
