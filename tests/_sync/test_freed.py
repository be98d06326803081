# From tests/_async/test_freed.py by tools/unasync.py; do not edit.
"""A call that fails, or that is repeated, does not keep the local variables of its callers.

The frames in the traceback of an error refer to their callers. So a client that keeps an error also
keeps what the callers have in their variables, such as the data of a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from penstock import Penstock, PenstockError, Queue
from penstock.client._acompat import sleep
from penstock.embedded import EmbeddedServer
from tests.support.freed import Freed, all_records, no_collector
from tests.support.proxy import Proxy
from tests.support.twins import spawn, wait_for

Call = Callable[[Queue], Any]


@pytest.fixture
def freed() -> Iterator[Freed]:
    """Objects to watch, without the garbage collector."""
    with all_records(), no_collector():
        yield Freed()


@pytest.fixture
def proxy(make_server: Callable[..., EmbeddedServer]) -> Iterator[Proxy]:
    """A proxy in front of a server."""
    with Proxy(make_server(tcp=True).address) as found:
        yield found


def call_with_data(call: Call, q: Queue, freed: Freed) -> None:
    """Call with an object in a local variable."""
    local = freed.make()
    call(q)
    assert local is not None


def ack_twice(q: Queue) -> None:
    """Acknowledge a job that is gone."""
    q.enqueue(1)
    [job] = q.reserve()
    job.ack()
    job.ack()


def overfill(q: Queue) -> None:
    """Add more jobs than there is room for."""
    q.enqueue_many([1, 2], max_length=1)


def take_a_plain_key(q: Queue) -> None:
    """Call a queue one of whose keys has another type."""
    q.enqueue(1)
    q.route.node.executor.command("DEL", q.ops.keys["ready"])
    q.route.node.executor.command("SET", q.ops.keys["ready"], "x")
    q.reserve()


REFUSED: dict[str, Call] = {
    "a bad argument": lambda q: q.enqueue(1, delay=-1),
    "a body that is no JSON": lambda q: q.enqueue(object()),
    "many bodies that are no JSON": lambda q: q.enqueue_many([object()]),
    "a full queue": overfill,
    "a stale receipt": ack_twice,
    "a key of another type": take_a_plain_key,
    "a command that does not exist": lambda q: q.route.node.executor.command("NONE"),
    "no result": lambda q: q.result("x", timeout=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal(name: str, proxy: Proxy, freed: Freed) -> None:
    """The error has no owner when its caller has caught it."""
    with Penstock(proxy.url) as ps:
        with suppress(PenstockError, redis.RedisError):
            call_with_data(REFUSED[name], ps.queue("q"), freed)
        wait_for(freed.are_all)


@pytest.mark.parametrize("faults", [0, 1, 3], ids=["no script", "a lost reply", "three of them"])
def test_a_call_that_is_repeated(faults: int, proxy: Proxy, freed: Freed) -> None:
    """A call that succeeds after errors keeps none of them."""
    with Penstock(proxy.url) as ps:
        q = ps.queue("q")
        q.enqueue(1)
        q.route.node.executor.command("SCRIPT", "FLUSH")
        armed = [proxy.eat_reply(after=b"EVALSHA") for _ in range(faults)]
        call_with_data(lambda q: q.enqueue(2), q, freed)
        wait_for(freed.are_all)
        assert [fault.has_struck for fault in armed] == [True] * faults
        assert q.stats().ready == 2


@pytest.mark.parametrize("retry_for", [0, 0.1])
@pytest.mark.parametrize("call", ["enqueue", "stats", "reserve"])
def test_a_server_that_is_gone(call: str, retry_for: float, proxy: Proxy, freed: Freed) -> None:
    """The error is raised after the repeats, and is not kept."""
    calls: dict[str, Call] = {
        "enqueue": lambda q: q.enqueue(1),
        "stats": lambda q: q.stats(),
        "reserve": lambda q: q.reserve(block=1),
    }
    with Penstock(proxy.url, retry_for=retry_for) as ps:
        q = ps.queue("q")
        q.enqueue(1)
        q.reserve()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            call_with_data(calls[call], q, freed)
        wait_for(freed.are_all)


def test_a_wait_that_is_cut(proxy: Proxy, freed: Freed) -> None:
    """A waiting call goes on after its connection was cut."""
    with Penstock(proxy.url) as ps:
        q = ps.queue("q")
        q.enqueue(1)
        q.reserve()
        waiting = spawn(call_with_data, lambda q: q.reserve(block=20), q, freed)
        wait_for(lambda: proxy.open_connections == 2)
        proxy.cut()
        sleep(0)
        q.enqueue(2)
        waiting.result()
        wait_for(freed.are_all)
