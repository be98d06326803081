"""One enqueue becomes two jobs: a failover loses it, and its producer repeats it.

A primary and two replicas run; the promoted replica has lagged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from penstock import Durable, Job, Penstock, Queue
from penstock.embedded import EmbeddedServer
from tests.nodes.promotion import Promotion
from tests.support.replicated import reach_replicas
from tests.support.twins import Beside, spawn

CHOSEN = 1
LEASE = 30.0


@pytest.fixture
def place() -> Iterator[Promotion]:
    """A primary and two replicas, which have the queue `q`."""
    with Promotion() as made:
        with Penstock(made.servers[0].url) as ps:
            ps.queue("q").configure(lease=LEASE)
        reach_replicas(made.raws[0], 2)
        yield made


class Failover:
    """A producer whose call does not reach the promoted replica, and whose reply is lost.

    Args:
        place: the servers.
        queue: the producer's, by the door of the servers.
        replicas: that are to confirm.
    """

    def __init__(self, place: Promotion, queue: Queue, replicas: int) -> None:
        self.place = place
        options: dict[str, Any] = {"durable": Durable(replicas, timeout=30)}
        queue.enqueue("before", **options)
        reach_replicas(place.raws[0], 2)
        place.links[CHOSEN - 1].hole("down")
        place.door.refuse()
        self.lost = place.door.eat_reply(after=b"EVALSHA")
        self.call: Beside[Any] = spawn(queue.enqueue, "work", **options)

    def strike(self) -> None:
        """Promote the lagging replica, after the other one has the job; the producer retries."""
        self.lost.wait()
        promoted = self.place.raws[CHOSEN]
        assert not self.call.is_done
        self.place.fall(CHOSEN)
        reach_replicas(promoted, 1)
        self.place.door.restore()


def bodies_and(queue: Queue, handle: Callable[[Job], None]) -> list[Job]:
    """Pass waiting jobs to a handler and acknowledge them; return those with the body `work`."""
    found = []
    while jobs := queue.reserve(1, block=0):
        for job in jobs:
            handle(job)
            job.ack()
            found += [job] * (job.body == "work")
    return found


@pytest.mark.parametrize("replicas", [0, 1])
def test_both_jobs_have_one_stable_id(place: Promotion, replicas: int) -> None:
    """A job is done on the old primary and added again on the new one, with the same stable id.

    Only the stable id shows that. A confirmation of one replica does not help if another one is
    promoted.
    """
    with Penstock(place.door.url, retry_for=30) as ps:
        failover = Failover(place, ps.queue("q"), replicas)
        with Penstock(place.servers[0].url) as consumer:
            old = [job for _ in range(2) for job in consumer.queue("q").reserve(1, block=20)]
            for job in old:
                job.ack(durable=Durable(replicas, timeout=30))
        done = next(job for job in old if job.body == "work")
        failover.strike()
        told = failover.call.result(30)
        (again,) = bodies_and(ps.queue("q"), lambda _: None)
    assert told.id == again.id != done.id
    assert told.stable_id == again.stable_id == done.stable_id
    assert again.body == done.body
    assert again.deliveries == done.deliveries == 1


class Marks:
    """The recipe of docs/durability.md: a mark for each enqueue that was processed.

    Args:
        raw: where the marks are.
        copies: how many replicas must have one before the work begins.
    """

    def __init__(self, raw: redis.Redis, copies: int = 0) -> None:
        self.raw = raw
        self.copies = copies
        self.worked: list[str] = []

    def handle(self, job: Job) -> bool:
        """Do the work once; return False if the mark is not safe and the work not done."""
        mark = f"mark:{job.stable_id}"
        if not self.raw.set(mark, "begun", nx=True, ex=60):
            return self.raw.get(mark) == b"done"
        if self.copies and self.raw.wait(self.copies, 300) < self.copies:
            self.raw.delete(mark)
            return False
        self.worked.append(job.body)
        self.raw.set(mark, "done", ex=86_400)
        return True


def test_marks_in_another_store_detect_the_second_job(place: Promotion) -> None:
    """A store that survives the primary's failure has the stable id: the work is done once."""
    with EmbeddedServer(tcp=True) as other, redis.Redis.from_url(other.url) as raw:
        assert _worked_on(place, Marks(raw)) == ["before", "work"]


def test_marks_on_the_same_primary_are_lost_with_the_job(place: Promotion) -> None:
    """The promoted replica has neither job nor mark, so the work is done again."""
    assert _worked_on(place, Marks(place.raws[0])) == ["before", "work", "before", "work"]


def test_unconfirmed_marks_delay_the_work(place: Promotion) -> None:
    """On the same primary: without confirmation of the mark the work is not done."""
    assert _worked_on(place, Marks(place.raws[0], copies=2)) == ["before", "work"]


def _worked_on(place: Promotion, marks: Marks) -> list[str]:
    """Return the work done, when each started job comes from the next primary again."""
    with Penstock(place.door.url, retry_for=30) as ps:
        failover = Failover(place, ps.queue("q"), 0)
        with Penstock(place.servers[0].url) as consumer:
            for job in [job for _ in range(2) for job in consumer.queue("q").reserve(1, block=20)]:
                if marks.handle(job):
                    job.ack()
                else:
                    job.release()
        failover.strike()
        failover.call.result(30)
        if marks.raw is place.raws[0]:
            marks.raw = place.raws[CHOSEN]
            marks.copies = min(marks.copies, 1)
        bodies_and(ps.queue("q"), marks.handle)
    return marks.worked
