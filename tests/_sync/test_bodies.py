# From tests/_async/test_bodies.py by tools/unasync.py; do not edit.
"""Bodies of a client with its own codec: enqueued, reserved, shown, and handled by workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from penstock import BadArgument, Codec, Penstock, Queue, UndecodableBody
from penstock.client._sync.client import twin_of
from penstock.worker import Handlers, Worker
from tests.support.backends import Backend
from tests.support.keyspace import Raw


@dataclass
class Order:
    """A body that JSON cannot express."""

    at: datetime
    total: Decimal
    lines: tuple[int, ...]


ORDER = Order(datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), Decimal("19.90"), (1, 2))
ADAPTER: TypeAdapter[Order] = TypeAdapter(Order)
CODECS = {
    "pydantic": Codec("json", ADAPTER.dump_json, ADAPTER.validate_json),
    "msgspec": Codec("json", msgspec.json.encode, msgspec.json.Decoder(Order).decode),
    "msgpack": Codec("x-msgpack", msgspec.msgpack.encode, msgspec.msgpack.Decoder(Order).decode),
}


@pytest.fixture(params=CODECS.values(), ids=CODECS)
def shop(backend: Backend, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    """A client with a codec."""
    with backend.sync_client() as lent, Penstock(lent, codec=request.param) as client:
        yield client


@pytest.fixture
def orders(shop: Penstock) -> Queue:
    """A queue of that client."""
    return shop.queue("q")


def test_bodies_come_back_as_they_were(orders: Queue) -> None:
    """Dates, decimals, dataclasses and tuples come back unchanged from every call."""
    orders.enqueue(ORDER)
    orders.enqueue(ORDER, lease=60, headers={"a": "b"})
    orders.enqueue(ORDER, dedup_id="one")
    orders.enqueue_many([ORDER, ORDER])
    orders.enqueue_many([ORDER], dedup_id=lambda body: str(body.total), delay=60)
    orders.enqueue(b"raw")
    assert [view.body for view in orders.peek()] == [ORDER] * 5 + [b"raw"]
    assert [view.body for view in orders.peek(state="scheduled")] == [ORDER]
    assert [view.body for view in orders.jobs()].count(ORDER) == 6
    jobs = orders.reserve(5, block=0)
    assert [job.body for job in jobs] == [ORDER] * 5
    found = orders.show(jobs[0])
    assert found is not None
    assert (found.body, found.codec) == (ORDER, orders.ops.codec.name)  # type: ignore[union-attr]  # it has one


def test_partitions_have_the_codec_too(shop: Penstock) -> None:
    """A partitioned queue and a copy of the client have the same codec."""
    queue = shop.queue("p", partitions=3)
    queue.enqueue_many([ORDER] * 5, key=lambda body: str(body.total))
    assert [job.body for job in queue.reserve(5, block=0)] == [ORDER] * 5
    queue.enqueue(ORDER)
    assert [view.body for view in queue.peek()] == [ORDER]
    with twin_of(shop) as twin:
        (job,) = twin.queue("p", partitions=3).reserve(block=0)
        assert job.body == ORDER


def test_failures_of_the_codec(orders: Queue, raw: Raw) -> None:
    """A body that the codec cannot encode adds no job; bytes that it cannot decode
    stay readable.
    """
    with pytest.raises(BadArgument, match="codec"):
        orders.enqueue(object())
    assert raw.exists("penstock:{q}:ready") == 0
    orders.enqueue(ORDER)
    (entry,) = raw.xrange("penstock:{q}:ready")
    head = entry[1][b"j"].partition(b"\n")[0]
    raw.xadd("penstock:{q}:ready", {"j": head + b"\nnonsense"}, id="9999999999999-1000000000")
    jobs = orders.reserve(2, block=0)
    with pytest.raises(UndecodableBody, match="codec"):
        jobs[1].body  # noqa: B018  # it raises
    assert jobs[1].raw == b"nonsense"


def test_other_clients(orders: Queue, ps: Penstock) -> None:
    """Other clients can read JSON bodies; for others the error names the missing codec."""
    orders.enqueue(ORDER)
    (job,) = ps.queue("q").reserve(block=0)
    if orders.ops.codec.name == "json":  # type: ignore[union-attr]  # it has one
        assert job.body == json.loads(job.raw)
        assert job.body["lines"] == [1, 2]
    else:
        with pytest.raises(UndecodableBody, match="unknown codec 'x-msgpack'"):
            job.body  # noqa: B018  # it raises


def test_a_worker_with_a_codec(backend: Backend) -> None:
    """Handlers get decoded bodies, and handlers with named arguments get decoded values."""
    codec = Codec("x-msgpack", msgspec.msgpack.encode, msgspec.msgpack.decode)
    handlers, seen = Handlers(), list[Any]()

    @handlers.handler("add")
    def add(a: int, b: int) -> None:
        seen.append(a + b)

    with backend.sync_client() as lent, Penstock(lent, codec=codec) as ps:
        q = ps.queue("q")
        q.enqueue(add.job(1, b=2))
        Worker(ps, "q", handlers, burst=True).run()
        stats = q.stats()
        assert (seen, stats.acked, stats.dead) == ([3], 1, 0)


def test_plain_json(q: Queue) -> None:
    """Without a codec keys become text, and tuples come back as lists."""
    with pytest.raises(BadArgument, match="the key 1 must be a str"):
        q.enqueue({1: 2})
    with pytest.raises(BadArgument, match="the key 1 must be a str"):
        q.enqueue_many([{"a": [{1: 2}]}])
    q.enqueue({"a": (1, 2)})
    (job,) = q.reserve(block=0)
    assert job.body == {"a": [1, 2]}
