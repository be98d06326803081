"""Replies that are larger than a server lets through: later calls ask for less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from penstock import AsyncPenstock, Penstock, Queue
from penstock.core.operations import QueueOps
from penstock.core.reply_limit import COUNTS, FIRST_PAUSE, LONGEST_PAUSE, NAMES, ReplyLimit, size_of
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.support.proxy import Proxy
from tests.support.twins import wait_for

LIMIT = ("--client-output-buffer-limit", "normal", "262144", "0", "0")
BODY = b"x" * 4000
"""A reply has room for 60 of them."""
Server = Callable[..., EmbeddedServer]


@pytest.fixture
def url(make_server: Server) -> str:
    """The URL of a server that cuts clients off from replies of more than 256 KB."""
    return make_server(tcp=True, args=LIMIT).url


@pytest.fixture
def q(url: str) -> Iterator[Queue]:
    """A queue of 1000 jobs."""
    with Penstock(url) as ps:
        queue = ps.queue("q")
        queue.enqueue_many([BODY] * 1000)
        yield queue


def connections(url: str) -> int:
    """Return how often clients have connected."""
    with redis.Redis.from_url(url) as raw:
        return int(raw.info("stats")["total_connections_received"])


def test_a_reserve_asks_for_less(url: str, q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """The repeat takes fewer jobs, and so do later calls: they lose no reply. The log says it."""
    assert 0 < len(q.reserve(400, block=0)) <= 60
    before = connections(url)
    jobs = q.reserve(400, block=0)
    outcomes, more = q.settle(jobs, 400)
    assert len(jobs) == len(outcomes) <= 60
    assert 0 < len(more) <= 60
    assert connections(url) == before + 1  # of this count itself
    (told,) = [text for text in caplog.messages if "was lost" in text]
    assert told.startswith("queue 'q': a reply of reserve_plain about up to 400 jobs was lost")


async def test_tasks_ask_for_less(url: str, q: Queue) -> None:
    """In asyncio, too."""
    async with AsyncPenstock(url) as ps:
        assert len(await ps.queue("q").reserve(400, block=0)) <= 60
    assert q.stats().ready > 0


def test_reads_ask_for_less(url: str, q: Queue) -> None:
    """A peek returns fewer jobs; what is read in pages comes whole, in smaller ones."""
    assert 0 < len(q.peek(400)) <= 60
    assert len({view.id for view in q.scan_iter(n=400)}) == 1000
    assert len(q.find("ready", n=400, body=1000).ids) > 0
    assert sum(len(q.reserve(50, block=0)) for _ in range(8)) > 60
    with Penstock(url) as other:
        for _ in range(2):  # the jobs of a lost reply are held as others are
            other.queue("q").recover(1000, idle=0)
        assert len(other.queue("q").recover(1000, idle=0)) == q.stats().active


def test_a_job_that_no_reply_can_hold(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It becomes a dead letter, though it is a suspect; the jobs that came with it do not."""
    with Penstock(url) as ps:
        q = ps.queue("q")
        q.configure(lease=0.05)
        q.enqueue(b"y" * 500_000)
        small = {job.id for job in q.enqueue_many([b"small"] * 20)}
        done = set[str]()
        reserve = partial(q.ops.reserve, 20, provisional=True)  # as a worker does

        def is_dead() -> bool:
            for job in ps.backend.node.run(reserve()).deliveries:
                if job.ack():
                    done.add(job.id)
            return q.stats().dead == 1 and done == small

        wait_for(is_dead)
        assert q.stats().crashed >= 3
    assert "a reply of reserve about one job was lost again" in caplog.text


def test_a_server_that_is_away_is_no_lost_reply(server: EmbeddedServer) -> None:
    """While no connection can be opened, nothing is sent and the calls keep their size."""
    with Proxy(server.address) as proxy, Penstock(proxy.url, retry_for=0.2) as ps:
        q = ps.queue("q")
        q.enqueue_many([1, 2])
        proxy.refuse()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            q.peek(8)
        assert q.ops.reply_limit.most == 0, "one call was sent, on the old connection"


def test_the_limit_grows_again() -> None:
    """It is doubled after a minute, later after longer pauses, and in the end lifted."""
    ops, limit, now = QueueOps(QueueKeys("q"), "", ()), ReplyLimit(), 1000.0

    def asked() -> int:
        call = ops.reserve(1000)
        limit.apply(call, now)
        return size_of(call)

    assert not limit.lose(ops.reserve(1000), now), "any connection may fail"
    assert asked() == 1000
    assert limit.lose(ops.reserve(1000), now)
    assert asked() == 250
    now += FIRST_PAUSE
    assert asked() == 500
    assert not limit.lose(ops.reserve(500), now - 1), "it is in the log already"
    assert asked() == 125
    now += FIRST_PAUSE
    assert asked() == 125
    now += LONGEST_PAUSE
    assert (asked(), limit.most) == (1000, 0)


@pytest.mark.parametrize("name", [*COUNTS, *NAMES])
def test_arguments_that_bound_replies(name: str) -> None:
    """Each script has the argument."""
    found = script(name)
    assert COUNTS.get(name, "number") in (*found.args, *found.rest)
