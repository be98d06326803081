# From tests/_async/test_idle_load.py by tools/unasync.py; do not edit.
"""Consumers that can't take what waits: they sleep, whatever holds it back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from penstock import Job, Penstock, Queue, Worker
from penstock.client._acompat import sleep
from penstock.wire.scripts import script
from tests.support.backends import Backend
from tests.support.keyspace import load_scripts
from tests.support.twins import spawn, wait_for

State: TypeAlias = Callable[[Queue], object]
JOBS = 20
"""Number of jobs that come to each queue while its consumers wait."""
WAIT_SECONDS = 2
MOST = 20
"""Most looks and waits of two consumers that begin on a queue, and sleep until its next event."""
COUNTED = {script("reserve").sha, "BLPOP"}
"""The commands by which a consumer looks for jobs and waits."""


def add(q: Queue, key: str | None = None) -> None:
    """Add a job that is due soon, one whose lease ends soon, and some that are ready."""
    q.enqueue("lost", lease=0.01, key=key)
    q.enqueue_many(range(5), key=key)
    q.enqueue("due", delay=0.01, key=key)
    assert len(q.reserve(1, block=0)) == 1


def held(q: Queue) -> None:
    """The queue has a hold."""
    add(q)
    q.hold(600)


def key_held(q: Queue) -> None:
    """The only key has a hold."""
    add(q, "a")
    q.hold(600, key="a")


def limited_key_held(q: Queue) -> None:
    """The only key has a hold, and a limit."""
    q.configure(per_key=2)
    key_held(q)


def both_held(q: Queue) -> None:
    """Everything that may hold a job does."""
    q.configure(rate="1/h", max_active=1, key_rate="1/h", per_key=1)
    key_held(q)
    q.hold(600)


def paused_out(q: Queue) -> None:
    """Nothing is delivered."""
    add(q)
    q.pause()


def paused_in(q: Queue) -> None:
    """Retries, due jobs and ended leases wait."""
    q.enqueue("lost", lease=0.01)
    q.enqueue("due", delay=0.01)
    assert len(q.reserve(1, block=0)) == 1
    q.pause("in")


def paused_all(q: Queue) -> None:
    """Both."""
    add(q)
    q.pause("all")


def limited(*, taken: int = 1, **limit: Any) -> State:
    """Return a state in which jobs of one key take all that a limit of the queue allows."""

    def prepare(q: Queue) -> None:
        q.configure(**limit)
        q.enqueue_many(range(5), key="a")
        q.enqueue("due", delay=0.01, key="a")
        assert len(q.reserve(9, block=0)) == taken

    return prepare


def head_waits(q: Queue) -> None:
    """The first job of the only key of an ordered queue is retried later."""
    q.configure(ordered=True)
    q.enqueue_many(range(5), key="a")
    [job] = q.reserve(9, block=0)
    job.nack(delay=600)


STATES: dict[str, State] = {
    "held": held,
    "key-held": key_held,
    "limited-key-held": limited_key_held,
    "all-held": both_held,
    "paused-out": paused_out,
    "paused-in": paused_in,
    "paused-all": paused_all,
    "max-active": limited(max_active=1),
    "rate": limited(rate="1/h"),
    "rate-soon": limited(rate="1/3s"),
    "key-rate": limited(key_rate="1/h"),
    "key-rate-at-limit": limited(key_rate="1/h", per_key=1),
    "per-key": limited(per_key=1),
    "share-at-limit": limited(share=1, per_key=2, taken=2),
    "share-without-slot": limited(share=1, max_active=1),
    "ordered": limited(ordered=True),
    "ordered-head": head_waits,
}


@pytest.fixture
def ps(one_server: Backend) -> Iterator[Penstock]:
    """A client of one server."""
    with one_server.sync_client() as lent, Penstock(lent, owner="tester") as client:
        yield client


def ignore(_: Job) -> None:
    """Do nothing."""


def test_what_is_held_back_keeps_no_consumer_busy(one_server: Backend, ps: Penstock) -> None:
    """A worker and a blocked `reserve` on a queue whose jobs can't be delivered look for jobs when
    they begin and at their polls; nor does a job that comes wake one of them each time.
    """
    raw = one_server.sync_client()
    load_scripts(raw)
    queues = {name: ps.queue(name) for name in STATES}
    for name, queue in queues.items():
        STATES[name](queue)
    workers = [Worker(ps, queue, ignore) for queue in queues.values()]
    began = time.monotonic()
    with one_server.sync_client().monitor() as monitor:
        running = [spawn(worker.run) for worker in workers]
        consumers = [spawn(queue.reserve, 1, block=WAIT_SECONDS) for queue in queues.values()]
        wait_for(lambda: raw.info("clients")["blocked_clients"] >= len(queues))
        for number in range(JOBS):
            for name, queue in queues.items():
                if name not in {"paused-in", "paused-all"}:
                    queue.enqueue(number, key="a")
            sleep(WAIT_SECONDS / JOBS / 2)
        for one in consumers:
            one.result()
        seconds = time.monotonic() - began
        for worker in workers:
            worker.stop()
        for ended in running:
            ended.result()
        raw.echo("that is all")
        counts: Counter[str] = Counter()
        while "that is all" not in (seen := monitor.next_command())["command"]:
            command = seen["command"]
            if not COUNTED.isdisjoint(command.split(" ", 2)[:2]):
                counts[command.partition("{")[2].partition("}")[0]] += 1
    assert counts.keys() == queues.keys()
    assert {name: n for name, n in counts.items() if n > MOST + seconds} == {}
