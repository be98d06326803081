"""Replies that are larger than a server lets through: later calls ask for less."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from penstock import AsyncPenstock, Penstock, Queue
from penstock.core.calls import call as calls
from penstock.core.calls import reply_limit
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.consuming import Taken
from penstock.core.calls.reply_limit import (
    ARGS_PER_JOB,
    COUNT_ARGUMENT,
    FIRST_GROWTH_PAUSE,
    LONGEST_GROWTH_PAUSE,
    ReplyLimit,
    size_of,
)
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.connection.stub import Command, Stub, bulk, info
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
    outcomes, more = q.ack_and_reserve(jobs, 400)
    assert len(jobs) == len(outcomes) <= 60
    assert 0 < len(more) <= 60
    assert connections(url) == before + 1  # of this count itself
    (told,) = [text for text in caplog.messages if "was lost" in text]
    assert told.startswith("queue 'q': a reply of reserve about up to 400 jobs was lost")


def test_a_long_call_asks_for_less(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with long arguments, too: its reply may be what is too large."""
    monkeypatch.setattr(calls, "LONG_CALL_BYTES", 1000)
    with Penstock(url) as ps:
        q = ps.queue("small")
        q.enqueue_many([b"small"] * 400 + [BODY * 3] * 500)
        outcomes, more = q.ack_and_reserve(q.reserve(400, block=0), 400)
        assert len(outcomes) == 400
        assert 0 < len(more) <= 60
        assert q.stats().acked == 400


async def test_tasks_ask_for_less(url: str, q: Queue) -> None:
    """In asyncio, too."""
    async with AsyncPenstock(url) as ps:
        assert len(await ps.queue("q").reserve(400, block=0)) <= 60
    assert q.stats().ready > 0


def test_reads_ask_for_less(url: str, q: Queue) -> None:
    """A peek returns fewer jobs; what is read in pages comes whole, in smaller ones."""
    assert 0 < len(q.peek(400)) <= 60
    assert len({view.id for view in q.jobs(n=400)}) == 1000
    assert len(q.jobs("ready", n=400, body=1000).page().ids) > 0
    assert sum(len(q.reserve(50, block=0)) for _ in range(8)) > 60
    with Penstock(url) as other:
        for _ in range(2):  # the jobs of a lost reply are held as others are
            other.queue("q").recover(1000, idle=0)
        assert len(other.queue("q").recover(1000, idle=0)) == q.stats().active


def test_a_job_that_no_reply_can_hold(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a dead letter, though it is a suspect; the jobs that came with it do not."""
    monkeypatch.setattr(reply_limit, "ONE_EVENT_SECONDS", 0.02)  # the lease is short, too
    with Penstock(url) as ps:
        q = ps.queue("q")
        q.configure(lease=0.05)
        q.enqueue(b"y" * 500_000)
        small = {job.id for job in q.enqueue_many([b"small"] * 20)}
        done = set[str]()
        reserve = partial(q.ops.reserve, 20, provisional=True)  # as a worker does

        def is_dead() -> bool:
            for job in ps.topology.executor.run(reserve()).deliveries:
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


@pytest.mark.parametrize(
    "answer", [b"-LOADING Redis is loading\r\n", b"-NOAUTH Authentication required.\r\n"]
)
def test_an_error_of_the_connection_is_no_lost_reply(answer: bytes) -> None:
    """A server that loads its data, or wants a password, has answered: calls keep their size."""

    def refuse(command: Command) -> bytes:
        if command[0] == b"INFO":
            return info(redis_version="7.0.0")
        if command[0] == b"HGET":
            return bulk(b"0" * 40)
        return answer if command[0] == b"EVALSHA" else b"-ERR not here\r\n"

    with Stub(refuse) as stub, Penstock(stub.url, retry_for=0.1) as ps:
        q = ps.queue("q")
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                q.peek(200)
        assert stub.names().count(b"EVALSHA") >= 2
        assert (q.ops.reply_limit.most, q.ops.reply_limit.suspected_size) == (0, 0)


OPS = QueueOps(QueueKeys("q"), "", ())


def reserve(limit: ReplyLimit, now: float, n: int = 200) -> Call[Taken]:
    """Return a reserve as it would be sent."""
    call = OPS.reserve(n)
    limit.apply(call, now)
    return call


def taken(n: int) -> Taken:
    """Return the result of a reserve of n jobs."""
    return Taken(0, [object()] * n, 30_000, 0)


def test_the_limit_grows_again() -> None:
    """A call that loses its reply again asks for less, and so do later ones for some minutes."""
    limit, now = ReplyLimit(), 1000.0
    call = reserve(limit, now, 1000)
    assert not limit.note_loss(call, now), "any connection may fail"
    assert limit.note_loss(call, now)
    assert size_of(call) == size_of(reserve(limit, now, 1000)) == 250
    assert not limit.note_loss(call, now + 1), "it is in the log already"
    assert (size_of(call), limit.most) == (62, 62)
    now += 1 + FIRST_GROWTH_PAUSE
    call = reserve(limit, now)
    assert size_of(call) == 124
    for _ in range(2):
        limit.note_loss(call, now)
    assert limit.most == 7
    assert size_of(reserve(limit, now + 1.9 * FIRST_GROWTH_PAUSE)) == 7, (
        "that size was too large before"
    )
    for _ in range(20):
        for _ in range(2):
            limit.note_loss(call, now)
    assert limit.most == 1
    assert size_of(reserve(limit, now + 10 * LONGEST_GROWTH_PAUSE)) == 200
    assert limit.most == 0


def test_losses_that_do_not_point_at_the_size() -> None:
    """One a connection, at once or now and then: later calls keep their size."""
    limit = ReplyLimit()
    calls = [OPS.reserve(200) for _ in range(4)]
    for number, call in enumerate(calls):
        assert not limit.note_loss(call, 1000 + number / 10), "a restart of the server"
    limit.note_reply(calls[0], taken(200))
    for hour in range(1, 20):
        assert not limit.note_loss(OPS.reserve(200), hour * 3000)
    limit.note_reply(calls[0], taken(200))
    assert not limit.note_loss(OPS.reserve(200), 19 * 3000 + 100)
    assert limit.most == 0


def test_losses_of_jobs_that_come_back() -> None:
    """The repeat of a reserve takes other jobs: the lost ones are lost again after their lease."""
    limit, now = ReplyLimit(), 1000.0
    for _ in range(2):
        limit.note_loss(call := reserve(limit, now), now)
        limit.note_reply(call, taken(10))
        now += 30
    assert limit.most == 50
    alone, now = ReplyLimit(), 1000.0
    for _ in range(6):
        alone.note_loss(call := reserve(alone, now), now)
        alone.note_reply(call, taken(size_of(call)))
        now += 30
    assert alone.most == 1, "a large job among small ones, whose replies are full"


@pytest.mark.parametrize("name", [*COUNT_ARGUMENT, *ARGS_PER_JOB])
def test_arguments_that_bound_replies(name: str) -> None:
    """Each script has the argument."""
    found = script(name)
    assert COUNT_ARGUMENT.get(name, "number") in (*found.args, *found.rest)
