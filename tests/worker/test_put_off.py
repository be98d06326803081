"""A handler that puts its job off, and holds the key or the queue, wherever it runs."""

from __future__ import annotations

import pytest

from penstock import Queue
from tests.support.workers import until
from tests.worker.support import Crew

KINDS = ("thread", "asyncio")


def is_held(queue: Queue, hold: str) -> bool:
    """Return whether the key or the queue is held."""
    stats = queue.stats()
    return stats.held_keys == 1 if hold == "key" else stats.held is not None


@pytest.mark.parametrize("hold", ["key", "queue"])
@pytest.mark.parametrize("way", ["Retry", "Snooze"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["helper", "isolated", "both"])
def test_a_job_that_holds(
    crew: Crew, queue: Queue, place: str, kind: str, way: str, hold: str
) -> None:
    """Beside a helper process, and in the process of a suspect, as in the worker itself.

    No other job of the key, or of the queue, begins before the hold has ended.
    """
    queue.configure(lease=0.05)
    body = {"n": 0, "do": "put off", "as": way, "hold": hold}
    job_id = queue.enqueue(body, key="a").id
    if place != "helper":  # it becomes a suspect
        for _ in range(2):
            until(lambda: queue.reserve(1, block=1))
        until(lambda: queue.stats().active == 0)
    queue.configure(lease=30)
    heartbeat = "thread" if place == "isolated" else "process"
    worker = crew.start(kind, isolate=place != "helper", heartbeat=heartbeat)
    until(lambda: is_held(queue, hold))
    until(lambda: queue.stats().active == 0)
    [event] = crew.diary.events("start", n=0)
    assert (event["pid"] == worker.pid) == (place == "helper")
    queue.enqueue_many([{"n": n, "do": "no"} for n in (1, 2)], key="a")
    queue.enqueue({"n": 3, "do": "no"}, key="b")
    if hold == "key":
        crew.diary.wait("end", n=3)
        until(lambda: queue.stats().acked == 1)
    assert crew.diary.events("start", n=1) == crew.diary.events("start", n=2) == []
    queue.hold(0, key="a" if hold == "key" else None)
    until(lambda: queue.stats().acked == 3)
    view = queue.show(job_id)
    assert view is not None
    assert (view.state, view.nacks) == ("scheduled", int(way == "Retry"))
    assert 500 < (view.next_in or 0) <= 600
