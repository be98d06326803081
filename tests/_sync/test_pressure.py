# From tests/_async/test_pressure.py by tools/unasync.py; do not edit.
"""Queues of the protocol pressure: errors and cases that the conformance tests leave out."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, MovedError, ReadOnlyError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import (
    BadArgument,
    ConfigurationError,
    OutOfMemory,
    ProtocolError,
    QueueDamaged,
    QueueFull,
)
from penstock.client._sync.transport.connection import ProducerConnection
from penstock.embedded import EmbeddedServer
from penstock.errors import OutcomeUnknown, QueueClosed, QueueInUse, QueueMissing, ServerUnreachable
from penstock.pressure import (
    OperationUnblocked,
    PressureCounters,
    PressureQueue,
    QueueEmpty,
    QueueExists,
)
from penstock.pressure._sync import connections, deletion, waiting
from penstock.pressure._sync.connections import WatchedConnection, slice_of
from penstock.wire.codes import PressureCode
from penstock.wire.scripts import all_scripts
from tests.support.backends import Backend, clustered
from tests.support.keyspace import Raw, dump
from tests.support.proxy import Proxy
from tests.support.twins import Beside, spawn, wait_for

DEAD = "redis://127.0.0.1:1/0"
BASE = "__pressure__:q"
VARIABLES = ("REDIS_SERVER", "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "PRESSURE_PREFIX")
Make = Callable[..., PressureQueue]


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """Use two back ends: the conformance tests run the scripts on all."""
    return brief_backend


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the environment variables that the client reads, and shorten its waits."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connections, "BLOCKING_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "TOKEN_LOST_SECONDS", 0.3)
    monkeypatch.setattr(deletion, "QUIET_ROLES_SECONDS", 0.3)


@pytest.fixture
def make(backend: Backend) -> Iterator[Make]:
    """Make handles of one queue, each with its own connections."""
    made = []
    with backend.sync_client() as lent:

        def one(name: str = "q", **options: Any) -> PressureQueue:
            made.append(PressureQueue(name, lent, **options))
            return made[-1]

        yield one
        for queue in made:
            queue.disconnect()


@pytest.fixture
def q(make: Make) -> PressureQueue:
    """A queue that does not exist yet."""
    return make()


def key(suffix: str) -> str:
    """Return a key of the queue `q`."""
    return f"{BASE}:{suffix}"


def tokens(raw: Raw) -> tuple[int, int, int]:
    """Return the lengths of producer_free, consumer_free and not_full."""
    lists = ("producer_free", "consumer_free", "not_full")
    found = [raw.llen(key(name)) for name in lists]
    return found[0], found[1], found[2]


class Turning:
    """The lists on which calls wait at this moment.

    Args:
        pending: the lists that they wait for.
    """

    def __init__(self) -> None:
        self.pending: list[bytes] = []

    def reach(self, *suffixes: str) -> None:
        """Return when calls wait for exactly these lists."""
        wanted = sorted(key(suffix).rstrip(":").encode() for suffix in suffixes)
        wait_for(lambda: sorted(self.pending) == wanted)


@pytest.fixture
def turning(monkeypatch: pytest.MonkeyPatch) -> Turning:
    """Return a helper that tells when a call in another task or thread begins to wait."""
    found, wait_for_element = Turning(), WatchedConnection.wait_for_element

    def noted(line: WatchedConnection, key: bytes, **options: Any) -> bool:
        found.pending.append(key)
        try:
            return wait_for_element(line, key, **options)
        finally:
            found.pending.remove(key)

    monkeypatch.setattr(WatchedConnection, "wait_for_element", noted)
    return found


# -- server address, names, client id -----------------------------------------------------


def test_the_default_server() -> None:
    """The default is 127.0.0.1, 6379, database 0 and `__pressure__`; constructing sends nothing."""
    queue = PressureQueue("q")
    assert repr(queue) == "<PressureQueue __pressure__:q at 127.0.0.1:6379>"


def test_variables_of_the_server_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments override REDIS_SERVER, which overrides REDIS_HOST; empty variables are ignored."""
    monkeypatch.setenv("REDIS_HOST", "queues.example")
    monkeypatch.setenv("REDIS_PORT", "6390")
    monkeypatch.setenv("PRESSURE_PREFIX", "pipes")
    assert repr(PressureQueue("q")) == "<PressureQueue pipes:q at queues.example:6390>"
    monkeypatch.setenv("REDIS_SERVER", "fd00::7")
    monkeypatch.setenv("REDIS_PORT", "")
    assert repr(PressureQueue("q")) == "<PressureQueue pipes:q at [fd00::7]:6379>"
    given = PressureQueue("q", "redis://localhost:7000/3", prefix="mine")
    assert repr(given) == "<PressureQueue mine:q at localhost:7000>"


def test_the_database_is_one_of_the_variables(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REDIS_DB selects the database, and queues are created there."""
    host, port = server.address
    monkeypatch.setenv("REDIS_HOST", host)
    monkeypatch.setenv("REDIS_PORT", str(port))
    monkeypatch.setenv("REDIS_DB", "5")
    with PressureQueue("q") as five:
        five.create()
        assert five.exists()
        monkeypatch.setenv("REDIS_DB", "0")
        with PressureQueue("q") as zero:
            assert not zero.exists()


@pytest.mark.parametrize(
    "name, value",
    [
        ("REDIS_PORT", "none"),
        ("REDIS_PORT", "0"),
        ("REDIS_PORT", "65536"),
        ("REDIS_PORT", "-1"),
        ("REDIS_PORT", "\u0663"),
        ("REDIS_DB", "zero"),
        ("REDIS_DB", "-1"),
        ("REDIS_DB", "1.5"),
        ("REDIS_SERVER", "user@host"),
        ("REDIS_HOST", "user@host"),
        ("REDIS_SERVER", "two words"),
    ],
)
def test_unusable_variables(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """An unusable variable is named in the error of the first call that needs it."""
    monkeypatch.setenv(name, value)
    with pytest.raises(BadArgument, match=name):
        PressureQueue("q")
    PressureQueue("q", DEAD)


RESERVED = [
    "bound", "producer", "consumer", "producer_free", "consumer_free", "not_full", "closed",
    "stats:produced_messages", "stats:produced_bytes", "stats:consumed_messages",
    "stats:consumed_bytes",
]  # fmt: skip


@pytest.mark.parametrize("suffix", [*RESERVED, "stats_produced_messages", "stats_consumed_bytes"])
def test_names_of_keys_of_other_queues_are_refused(suffix: str) -> None:
    """A name like `jobs:bound` is refused, as it is a key of the queue `jobs`;
    prefixes likewise.
    """
    with pytest.raises(BadArgument, match="another queue"):
        PressureQueue(f"jobs:{suffix}", DEAD)
    with pytest.raises(BadArgument, match="another queue"):
        PressureQueue(suffix, DEAD, prefix="p:jobs")
    for name in (suffix, f"{suffix}:jobs", f"jobs{suffix}"):
        PressureQueue(name, DEAD)


@pytest.mark.parametrize("name", ["", None, b"q", 7, "\ud800"])
def test_invalid_names(name: Any) -> None:
    """A name or prefix must be text, not empty, and valid UTF-8."""
    with pytest.raises(BadArgument, match="name="):
        PressureQueue(name, DEAD)
    if name is not None:
        with pytest.raises(BadArgument, match="prefix="):
            PressureQueue("q", DEAD, prefix=name)


@pytest.mark.parametrize("client_id", ["", b"me", "a\nb", "x" * 201, 7])
def test_invalid_client_ids(client_id: Any) -> None:
    """A client id must be printable text of at most 200 bytes."""
    with pytest.raises(BadArgument, match="client_id"):
        PressureQueue("q", DEAD, client_id=client_id)


@pytest.mark.parametrize("source", [7, "http://localhost", b"redis://localhost"])
def test_invalid_sources(source: Any) -> None:
    """A source must be a Redis URL or a client."""
    with pytest.raises(BadArgument, match="source"):
        PressureQueue("q", source)


def test_a_client_that_decodes_is_refused(backend: Backend) -> None:
    """A client with `decode_responses` is refused, as messages are bytes."""
    with backend.sync_client(decode_responses=True) as lent:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            PressureQueue("q", lent)


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q.create(-1),
        lambda q: q.create(1.0),
        lambda q: q.create(True),
        lambda q: q.create("5"),
        lambda q: q.create(None),
        lambda q: q.create(1 << 60),
        lambda q: q.put(7),
        lambda q: q.put(None),
        lambda q: q.put("\ud800"),
        lambda q: q.put_nowait(["x"]),
        lambda q: q.put("x", timeout=-1),
        lambda q: q.put("x", timeout="1"),
        lambda q: q.put("x", timeout=float("nan")),
        lambda q: q.put("x", overfill=1),
        lambda q: q.put("x", replicas=-1),
        lambda q: q.put("x", replicas=True),
        lambda q: q.put("x", replicas=1001),
        lambda q: q.put("x", replicas=1, replication_timeout=0),
        lambda q: q.put("x", replicas=1, replication_timeout="1"),
        lambda q: q.peek_reverse(timeout=-1),
        lambda q: q.put_nowait("x", overfill="yes"),
        lambda q: q.get(timeout=-0.5),
        lambda q: q.get(timeout=True),
        lambda q: q.close(timeout=float("inf")),
        lambda q: q.delete(timeout=-1),
        lambda q: q.free_role("reader"),
        lambda q: q.free_role(None),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(call: Callable[..., Any]) -> None:
    """Bad arguments are refused before anything is sent, so no server is needed."""
    with pytest.raises(BadArgument):
        call(PressureQueue("q", DEAD))


OPERATIONS: list[Callable[[PressureQueue], Any]] = [
    lambda q: q.create(),
    lambda q: q.exists(),
    lambda q: q.length(),
    lambda q: q.closed(),
    lambda q: q.bound(),
    lambda q: q.counters(),
    lambda q: q.put("x"),
    lambda q: q.put_nowait("x"),
    lambda q: q.get(),
    lambda q: q.get_nowait(),
    lambda q: q.peek_reverse(),
    lambda q: q.peek_reverse_nowait(),
    lambda q: q.close(),
    lambda q: q.delete(),
    lambda q: q.free_role("producer"),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_without_a_server_every_operation_fails(operation: Callable[..., Any]) -> None:
    """Without a server the error is not `OutcomeUnknown`: the call cannot have run."""
    with pytest.raises(ServerUnreachable):
        operation(PressureQueue("q", DEAD))


def test_the_default_client_id(make: Make, raw: Raw) -> None:
    """The default client id has host, process and the calling task or thread."""
    q, named = make(), make(client_id="pump 7")
    ours = f"{socket.gethostname()}_pid{os.getpid()}_tid"
    assert q.client_id.startswith(ours)

    def other() -> str:
        return q.client_id

    theirs = spawn(other).result()
    assert theirs.startswith(ours)
    assert theirs != q.client_id
    q.create()
    q.put("x")
    named.put_nowait("y")
    assert raw.get(key("producer")) == b"pump 7"
    assert q.get() == b"x"
    assert raw.get(key("consumer")) == q.client_id.encode()
    assert named.client_id == "pump 7"


def test_text_is_stored_as_utf_8(q: PressureQueue, raw: Raw) -> None:
    """Text is stored as UTF-8, and counters count its bytes."""
    q.create()
    q.put("\u2603")
    assert raw.lrange(BASE, 0, -1) == [b"\xe2\x98\x83"]
    assert q.counters() == PressureCounters(1, 3, 0, 0)


def test_messages_end_when_the_queue_is_closed(make: Make, turning: Turning) -> None:
    """An iteration takes the remaining messages, waits, and ends when the queue is closed."""
    q = make()
    q.create()
    q.put("a")

    def all_of_them() -> list[str]:
        return [message.decode() for message in make()]

    reader = spawn(all_of_them)
    turning.reach("")
    q.put("b")
    q.close()
    assert reader.result() == ["a", "b"]
    assert all_of_them() == []


def test_an_iteration_is_unblocked_between_two_messages(q: PressureQueue) -> None:
    """`unblock` ends a running iteration before its next message; a later iteration works."""
    q.create()
    for message in ("a", "b"):
        q.put(message)

    def unblocked_at_the_first() -> None:
        for _ in q:
            q.unblock()

    with pytest.raises(OperationUnblocked, match="'q'"):
        unblocked_at_the_first()
    assert q.length() == 1
    for message in q:
        assert message == b"b"
        q.close()


def test_unblock_leaves_closing_and_others_alone(make: Make, turning: Turning, raw: Raw) -> None:
    """`unblock` affects neither a waiting close nor the waits of another object."""
    q, other = make(), make()
    q.create(1)
    raw.rpop(key("producer_free"))
    closing, getting = spawn(q.close), spawn(other.get)
    turning.reach("", "producer_free")
    q.unblock()
    with pytest.raises(QueueInUse):  # one slice has passed
        q.put("a", timeout=0.2)
    assert not closing.is_done
    assert not getting.is_done
    raw.lpush(key("producer_free"), 0)
    closing.result()
    with pytest.raises(QueueClosed):
        getting.result()


def test_a_context_closes_connections_not_the_queue(one_server: Backend) -> None:
    """Leaving the context closes connections; queue and object stay usable."""
    raw = one_server.sync_client()
    assert one_server.url
    with PressureQueue("q", one_server.url) as q:
        q.create(bound=1)
        q.put("x")
        with pytest.raises(QueueFull):
            q.put("y", timeout=0.01)
        assert raw.info("clients")["connected_clients"] == 3
    wait_for(lambda: raw.info("clients")["connected_clients"] == 1)
    assert q.get() == b"x"
    assert not q.closed()
    q.disconnect()


# -- one after the other -------------------------------------------------------------------


def test_a_refused_creation_changes_nothing(q: PressureQueue, raw: Raw) -> None:
    """Creating an existing queue, or one with leftover lists, is refused and changes nothing."""
    q.create(3)
    before = dump(raw)
    with pytest.raises(QueueExists, match="exists already"):
        q.create(4)
    assert dump(raw) == before
    raw.delete(key("bound"))
    before = dump(raw)
    with pytest.raises(QueueExists, match="earlier"):
        q.create(4)
    assert dump(raw) == before


def test_a_creation_resets_the_counters(q: PressureQueue, raw: Raw) -> None:
    """A creation resets counters and removes leftovers of the Go client and of late parties."""
    raw.set(key("stats:produced_messages"), 5)
    raw.set(key("producer"), "late")
    q.create()
    assert q.counters() == PressureCounters(0, 0, 0, 0)
    assert raw.get(key("producer")) is None


def test_over_filling(q: PressureQueue, raw: Raw) -> None:
    """An overfilled queue takes no message until it is below its bound, also for
    waiting producers.
    """
    q.create(1)
    q.put("a")
    q.put("b", overfill=True)
    q.put_nowait("c", overfill=True)
    assert (q.length(), tokens(raw)) == (3, (1, 1, 0))
    for left in (2, 1):
        q.get()
        assert (q.length(), tokens(raw)) == (left, (1, 1, 0))
        with pytest.raises(QueueFull):
            q.put_nowait("d")
    assert q.get() == b"c"
    assert tokens(raw) == (1, 1, 1)


def test_a_wrong_token_of_room_is_removed(q: PressureQueue, raw: Raw) -> None:
    """Old clients push a token of room with every message taken; a wrong one is removed."""
    q.create(1)
    q.put("a")
    raw.lpush(key("not_full"), 0)
    with pytest.raises(QueueFull):
        q.put_nowait("b")
    assert tokens(raw) == (1, 1, 0)


def test_a_token_of_room_that_is_missing(q: PressureQueue, raw: Raw) -> None:
    """If both roles are free and the token of room is lost, the next put creates it."""
    q.create(2)
    raw.delete(key("not_full"))
    q.put_nowait("a")
    assert tokens(raw) == (1, 1, 1)


def test_a_token_of_room_that_stays_away(
    make: Make, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a consumer waits it may be about to push the token, so a producer waits for a while."""
    q = make()
    q.create(2)
    raw.delete(key("not_full"))
    raw.rpop(key("consumer_free"))
    with pytest.raises(QueueFull):
        q.put_nowait("a")
    with monkeypatch.context() as patch:
        patch.setattr(waiting, "TOKEN_LOST_SECONDS", 60.0)
        with pytest.raises(QueueFull):
            q.put("a", timeout=0.2)
    assert tokens(raw) == (1, 0, 0)
    q.put("a", timeout=20)
    assert tokens(raw) == (1, 0, 1)


def test_two_tokens_of_a_role_become_one(q: PressureQueue, raw: Raw) -> None:
    """A party was taken for dead but gives its role back too: its calls leave one token."""
    q.create()
    raw.lpush(key("producer_free"), 0)
    raw.lpush(key("consumer_free"), 0)
    q.put("a")
    q.get()
    assert tokens(raw) == (1, 1, 1)


@pytest.mark.parametrize("operation", OPERATIONS[2:], ids=range(2, len(OPERATIONS)))
def test_calls_on_a_missing_queue(
    operation: Callable[..., Any], q: PressureQueue, raw: Raw
) -> None:
    """On a missing queue each call raises `QueueMissing` and creates no key."""
    with pytest.raises(QueueMissing, match="queue 'q' does not exist"):
        operation(q)
    assert raw.keys() == []


@pytest.mark.parametrize("kind", ["bound", *RESERVED[7:]])
def test_invalid_numbers(q: PressureQueue, raw: Raw, kind: str) -> None:
    """Counters and bounds that are not numbers raise an error, and no message is lost or added."""
    q.create()
    q.put("a")
    for value in ("", "many") if kind == "bound" else ("", "many", "-1", "1.5", "9" * 19):
        raw.set(key(kind), value)
        before = dump(raw)
        if "consumed" not in kind:
            for put in (q.put_nowait, q.put):
                with pytest.raises(QueueDamaged):
                    put("b")
        if "produced" not in kind:
            for get in (q.get_nowait, q.get):
                with pytest.raises(QueueDamaged):
                    get()
        if value == "many":
            with pytest.raises(QueueDamaged):
                q.counters()
        assert dump(raw) == before


NEEDS = {
    "put": ["", "bound", "producer", "producer_free", "not_full", "closed", *RESERVED[7:9]],
    "get": ["", "bound", "consumer", "consumer_free", "not_full", "closed", *RESERVED[9:]],
    "close": ["bound", "producer", "producer_free", "closed"],
    "delete": ["bound", "producer_free", "consumer_free", "not_full", "closed"],
    "free_role": ["", "bound", "producer_free", "consumer_free", "not_full"],
    "length": ["", "bound"],
    "counters": RESERVED[7:],
}


@pytest.mark.parametrize("name", NEEDS)
def test_keys_of_another_type(q: PressureQueue, raw: Raw, name: str) -> None:
    """Keys of another type raise an error, and nothing changes."""
    arguments = {"put": ["c"], "free_role": ["producer"]}.get(name, [])
    for kind in NEEDS[name]:
        raw.flushdb()
        q.create()
        q.put("a")
        q.get()
        q.put("b")
        broken = key(kind).rstrip(":")
        raw.delete(broken)
        raw.hset(broken, "field", "value")
        before = dump(raw)
        with pytest.raises(QueueDamaged, match="wrong type"):
            getattr(q, name)(*arguments)
        assert dump(raw) == before


# -- waiting -------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0.0, 0.0004, 0.001, 0.0014, 0.05])
def test_the_shortest_wait(timeout: float) -> None:
    """Redis 6.2 takes 1 ms for 0, which is for ever, so a blocking command gets 2 ms at least."""
    assert float(b"%.3f" % slice_of(timeout)) == max(timeout, 0.002)


def test_a_timed_out_wait_leaves_nothing_behind(make: Make, raw: Raw) -> None:
    """A wait that times out gives its role and token back; 0 seconds means no wait."""
    q = make()
    q.create(1)
    for seconds in (0, 0.05, 0.15):
        with pytest.raises(QueueEmpty):
            q.get(timeout=seconds)
        assert tokens(raw) == (1, 1, 1)
    q.put("a")
    for seconds in (0, 0.05, 0.15):
        with pytest.raises(QueueFull):
            q.put("b", timeout=seconds)
        assert tokens(raw) == (1, 1, 0)
    raw.rpop(key("producer_free"))
    raw.set(key("producer"), "the other")
    for call in (lambda: q.put("b", timeout=0.05), lambda: q.close(timeout=0.05)):
        with pytest.raises(QueueInUse, match="producer role is held by the other") as caught:
            call()
        assert (caught.value.role, caught.value.holder) == ("producer", "the other")
    assert tokens(raw) == (0, 1, 0)


def test_parties_of_ours_take_turns(make: Make, turning: Turning, raw: Raw) -> None:
    """Several parties wait, one of them for room: each gets its turn, and no message is lost."""
    q = make()
    q.create(1)
    q.put(b"0")
    others = [spawn(make().put, b"%d" % number) for number in range(1, 4)]
    turning.reach("not_full", "producer_free", "producer_free")
    got = [q.get(timeout=20) for _ in range(4)]
    for other in others:
        other.result()
    assert got[0] == b"0"
    assert sorted(got) == [b"0", b"1", b"2", b"3"]
    assert tokens(raw) == (1, 1, 1)


def test_closing_waits_behind_a_producer(make: Make, turning: Turning) -> None:
    """A close waits for a producer in progress, whose message is delivered; later
    ones are refused.
    """
    q = make()
    q.create(1)
    q.put("a")
    putting = spawn(make().put, "b")
    turning.reach("not_full")
    closing = spawn(make().close)
    turning.reach("not_full", "producer_free")
    assert q.get() == b"a"
    putting.result()
    closing.result()
    for call in (lambda: q.put("c"), lambda: q.put_nowait("c"), q.close):
        with pytest.raises(QueueClosed):
            call()
    assert q.get() == b"b"
    with pytest.raises(QueueClosed):
        q.get()


def test_a_producer_in_line_learns_that_the_queue_is_closed(
    make: Make, turning: Turning, raw: Raw
) -> None:
    """A put that waits for the producer role ends when another party closes the queue."""
    q = make()
    q.create()
    raw.rpop(key("producer_free"))
    putting = spawn(make().put, "a")
    turning.reach("producer_free")
    raw.lpush(key("closed"), 0, 0)
    with pytest.raises(QueueClosed):
        putting.result()
    assert q.length() == 0


def test_a_recreated_queue_is_not_written_to(make: Make, turning: Turning, raw: Raw) -> None:
    """A queue is deleted and re-created at once: role holders and waiting parties get an error."""
    q = make()
    q.create(1)
    q.put("a")
    holds = spawn(make().put, "b")
    turning.reach("not_full")
    waits = spawn(make().put, "c")
    turning.reach("not_full", "producer_free")
    recreation = raw.pipeline(transaction=True)
    recreation.delete(*raw.keys())
    recreation.set(key("bound"), 5)
    for name in ("producer_free", "consumer_free", "not_full"):
        recreation.lpush(key(name), "0")
    recreation.execute()
    after = dump(raw)
    for one in (holds, waits):
        with pytest.raises(QueueMissing, match="deleted while"):
            one.result()
    assert dump(raw) == after


def test_a_reader_gets_nothing_from_a_recreated_queue(
    make: Make, turning: Turning, raw: Raw
) -> None:
    """A reader with a role of the deleted queue gets no message from the re-created one."""
    q = make()
    q.create()
    reader = spawn(make().get)
    turning.reach("")
    recreation = raw.pipeline(transaction=True)
    recreation.delete(*raw.keys())
    recreation.set(key("bound"), 5)
    recreation.lpush(key("producer_free"), "0")
    recreation.set(key("consumer"), "the other")
    recreation.lpush(BASE, "x")
    recreation.execute()
    with pytest.raises(QueueMissing):
        reader.result()
    assert tokens(raw) == (1, 0, 0)
    assert q.length() == 1


def test_a_role_holder_is_told_of_a_recreated_queue(make: Make, turning: Turning, raw: Raw) -> None:
    """A role holder learns of the re-creation even if another party has the role there."""
    q = make()
    q.create(1)
    reader = spawn(make().get)
    turning.reach("")
    recreation = raw.pipeline(transaction=True)
    recreation.delete(*raw.keys())
    recreation.set(key("bound"), 1)
    recreation.lpush(key("producer_free"), "0")
    recreation.lpush(key("not_full"), "0")
    recreation.set(key("consumer"), "the other")
    recreation.execute()
    after = dump(raw)
    with pytest.raises(QueueMissing, match="deleted while"):
        reader.result()
    assert dump(raw) == after


@pytest.mark.parametrize("defeats", [1, 0], ids=["woken", "popping"])
def test_a_waiting_party_is_told_of_a_recreated_queue(
    server: EmbeddedServer, plain: Raw, monkeypatch: pytest.MonkeyPatch, defeats: int
) -> None:
    """A party waiting for a role learns of the re-creation even if the role is taken there too."""
    monkeypatch.setattr(waiting, "MOST_LOST_RACES", defeats)
    with PressureQueue("q", server.url) as q:
        q.create(1)
        plain.rpop(key("producer_free"))
        putting = spawn(q.put, "a")
        blocked(plain, 1)
        recreation = plain.pipeline(transaction=True)
        recreation.delete(*plain.keys())
        recreation.set(key("bound"), 5)
        recreation.lpush(key("consumer_free"), "0")
        recreation.lpush(key("not_full"), "0")
        recreation.set(key("producer"), "the other")
        recreation.execute()
        after = dump(plain)
        with pytest.raises(QueueMissing, match="deleted while"):
            putting.result()
        assert dump(plain) == after


def test_a_holder_whose_role_was_freed_waits_again(make: Make, turning: Turning, raw: Raw) -> None:
    """A holder whose role was freed and taken by another party waits for its turn again."""
    q = make()
    q.create(1)
    q.put("a")
    putting = spawn(make().put, "b")
    turning.reach("not_full")
    assert q.free_role("producer")
    raw.rpop(key("producer_free"))
    raw.set(key("producer"), "the other")
    assert q.get() == b"a"
    turning.reach("producer_free")
    assert q.length() == 0
    assert raw.get(key("producer")) == b"the other"
    raw.lpush(key("producer_free"), 0)
    putting.result()
    assert q.get() == b"b"
    assert tokens(raw) == (1, 1, 1)


def test_a_party_that_had_just_popped_the_token_of_a_role_that_was_freed(
    make: Make, turning: Turning, raw: Raw
) -> None:
    """A role is freed just after a party popped its token: this party goes on, the
    next one waits.
    """
    q = make()
    q.create(1)
    q.put("a")
    assert raw.rpop(key("producer_free"))  # one of our waiting parties, which is stopped here
    assert q.free_role("producer")
    successor = spawn(make(client_id="successor").put, "b")
    turning.reach("not_full")
    late = q._calls.call(
        "put",
        "producer",
        id=b"late",
        message=b"c",
        overfill=0,
        held=waiting.TOKEN_POPPED,
        wait=1,
        lost=0,
    )
    assert q._server.run_once(late).code == PressureCode.HOLDING
    turning.reach("producer_free")
    assert raw.get(key("producer")) == b"late"
    assert q.get() == b"a"
    late = q._calls.call(
        "put",
        "producer",
        id=b"late",
        message=b"c",
        overfill=0,
        held=waiting.ROLE_HELD,
        wait=1,
        lost=0,
    )
    assert q._server.run_once(late).code == PressureCode.DONE
    assert q.get() == b"c"
    successor.result()
    assert q.get() == b"b"
    assert tokens(raw) == (1, 1, 1)


def test_freeing_a_role_mends_the_token_of_room(q: PressureQueue, raw: Raw) -> None:
    """A producer died with the token of room: it is restored when the producer role is freed."""
    q.create(2)
    raw.rpop(key("producer_free"))
    raw.rpop(key("not_full"))
    raw.rpop(key("consumer_free"))
    assert q.free_role("consumer")
    assert not q.free_role("consumer")
    assert tokens(raw) == (0, 1, 0)
    assert q.free_role("producer")
    assert not q.free_role("producer")
    assert tokens(raw) == (1, 1, 1)


def test_scripts_that_vanish_in_a_wait(make: Make, turning: Turning, raw: Raw) -> None:
    """Scripts flushed during a wait are loaded again, also within a transaction."""
    q = make()
    q.create()
    reader = spawn(make().get)
    turning.reach("")
    raw.script_flush()
    raw.lpush(BASE, "x")
    assert reader.result() == b"x"
    assert tokens(raw) == (1, 1, 1)


@pytest.mark.parametrize("size", [0, 300, 3_000, 17_000, 100_000])
def test_a_script_and_the_next_watch_are_sent_together(
    make: Make, turning: Turning, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Data that the server must read at once is short and sent at once, even for a long message."""
    q, packets = make(), list[bytes]()
    replies = ProducerConnection.replies
    q.create(1)
    q.put("a")

    def noted(own: ProducerConnection, packed: bytes, count: int) -> list[Any]:
        packets.append(packed)
        return replies(own, packed, count)

    waiting = spawn(q.put, "x" * size)
    turning.reach("not_full")
    monkeypatch.setattr(ProducerConnection, "replies", noted)
    assert make().get() == b"a"
    waiting.result()
    (last,) = (packet for packet in packets if b"EXEC\r\n" in packet)
    assert b"WATCH" in last.partition(b"EXEC\r\n")[2]
    assert len(last) <= connections.ONE_PACKET_BYTES
    assert q.get() == b"x" * size


# -- deletion ------------------------------------------------------------------------------


def test_a_deletion_waits_for_role_holders(make: Make, turning: Turning, raw: Raw) -> None:
    """A deletion asks role holders to leave and waits for them; a later call continues it."""
    q = make()
    q.create(1)
    q.put("a")
    raw.rpop(key("producer_free"))
    raw.set(key("producer"), "deaf")
    reader = spawn(make().get)
    assert reader.result() == b"a"
    reader = spawn(make().get)
    turning.reach("")
    with pytest.raises(QueueInUse, match="held by deaf"):
        q.delete(timeout=0.5)
    with pytest.raises(QueueMissing):
        reader.result()
    assert not q.exists()
    with pytest.raises(QueueExists, match="earlier"):
        q.create()
    with pytest.raises(QueueInUse):
        q.delete(timeout=0)
    deleting = spawn(make().delete)
    assert q.free_role("producer")
    deleting.result()
    assert raw.keys() == []
    with pytest.raises(QueueMissing):
        q.free_role("producer")


def test_a_deletion_that_was_broken_off(make: Make, raw: Raw) -> None:
    """After a client died in the middle of a deletion, the next delete finishes it."""
    q = make()
    q.create()
    raw.delete(key("bound"))
    with pytest.raises(QueueMissing):
        q.get()
    q.delete(timeout=0)
    assert raw.keys() == []
    q.create(3)


def test_a_deletion_of_another_party_that_continues(make: Make, raw: Raw, turning: Turning) -> None:
    """A deletion in progress is not taken over: a second delete finds no queue."""
    q = make()
    q.create()
    raw.delete(key("bound"))
    raw.lpush(key("closed"), 0, 0)
    raw.brpop(key("producer_free"))
    second = spawn(q.delete)
    raw.brpop(key("consumer_free"))
    raw.delete(*raw.keys())
    with pytest.raises(QueueMissing):
        second.result()


def test_a_queue_that_is_made_during_a_deletion_is_whole(
    make: Make, raw: Raw, turning: Turning
) -> None:
    """Other clients check only the bound, so they may re-create the queue before
    the deletion ends.
    """
    q = make()
    q.create(1)
    q.put("old")
    raw.rpop(key("producer_free"))
    raw.rpop(key("consumer_free"))
    deleting = spawn(make().delete)
    turning.reach("producer_free")
    raw.set(key("bound"), 4)
    for name in ("producer_free", "consumer_free"):
        raw.lpush(key(name), 0)
    deleting.result()
    assert tokens(raw) == (1, 1, 1)
    assert (q.bound(), q.length(), q.closed()) == (4, 0, False)
    q.put("new")
    assert q.get() == b"new"


def test_a_deletion_that_another_party_has_ended(make: Make, raw: Raw, turning: Turning) -> None:
    """After another party finished the deletion, a re-created queue is left alone."""
    q = make()
    q.create(1)
    raw.rpop(key("consumer_free"))
    deleting = spawn(make().delete)
    turning.reach("consumer_free")
    recreation = raw.pipeline(transaction=True)
    recreation.delete(*raw.keys())
    recreation.set(key("bound"), 5)
    recreation.lpush(BASE, "x")
    for name in ("producer_free", "consumer_free", "not_full"):
        recreation.lpush(key(name), "0")
    recreation.execute()
    after = dump(raw)
    deleting.result()
    assert dump(raw) == after


def test_a_deletion_is_taken_over_only_after_a_quiet_time(
    make: Make, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quiet time starts again whenever a role was held: its holder may be the
    deleting party.
    """
    q, times, codes, once = (
        make(),
        list[float](),
        list[int](),
        connections.PressureServer.run_once,
    )
    q.create()
    raw.delete(key("bound"))  # as another party does, which then stopped

    def noted(self: connections.PressureServer, call: Any) -> Any:
        if "adopt" not in call.args:
            return once(self, call)
        times.append(time.monotonic())
        if len(times) == 1:
            raw.rpop(key("producer_free"))  # the other party continues
        reply = once(self, call)
        codes.append(reply.code)
        return reply

    monkeypatch.setattr(connections.PressureServer, "run_once", noted)
    deleting = spawn(q.delete)
    wait_for(lambda: bool(codes))
    freed = time.monotonic()
    raw.lpush(key("producer_free"), 0)  # the role was freed or given back
    deleting.result()
    assert codes == [PressureCode.IN_USE, PressureCode.DONE]
    assert times[1] - freed >= deletion.QUIET_ROLES_SECONDS
    assert raw.keys() == []


def test_a_deletion_with_popped_sentinels(make: Make, raw: Raw, turning: Turning) -> None:
    """Readers without roles may have popped both sentinels: the remaining keys are removed too."""
    q = make()
    q.create()
    raw.rpop(key("consumer_free"))
    deleting = spawn(make().delete)
    turning.reach("consumer_free")
    assert raw.brpop(key("closed"), 1)
    assert raw.brpop(key("closed"), 1)
    raw.lpush(key("consumer_free"), 0)
    deleting.result()
    assert raw.keys() == []
    q.create(2)


# -- connections ---------------------------------------------------------------------------


@pytest.fixture
def plain(server: EmbeddedServer) -> Raw:
    """A client of `server`, which knows the scripts."""
    with redis.Redis.from_url(server.url) as client:
        for one in all_scripts("pressure/"):
            client.script_load(one.source)
        yield client


@pytest.fixture
def proxied(server: EmbeddedServer, plain: Raw) -> Iterator[tuple[PressureQueue, Proxy]]:
    """A queue with bound 2 behind a proxy, with one open connection."""
    with Proxy(server.address) as proxy:
        with PressureQueue("q", proxy.url) as queue:
            queue.create(2)
            yield queue, proxy


def test_a_lost_reply_is_reported_and_not_repeated(
    proxied: tuple[PressureQueue, Proxy], plain: Raw
) -> None:
    """A lost reply raises `OutcomeUnknown`; the call ran once and is not repeated."""
    q, proxy = proxied
    for put, count in ((q.put_nowait, 1), (q.put, 2)):
        fault = proxy.eat_reply(after=b"EVALSHA")
        with pytest.raises(OutcomeUnknown) as caught:
            put("a")
        fault.wait()
        assert isinstance(caught.value, RedisConnectionError)
        assert isinstance(caught.value.__cause__, RedisConnectionError)
        assert plain.llen(BASE) == count
    for get, count in ((q.get_nowait, 1), (q.get, 0)):
        proxy.eat_reply(after=b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            get()
        assert plain.llen(BASE) == count
    assert q.counters() == PressureCounters(2, 2, 2, 2)
    assert tokens(plain) == (1, 1, 1)


def test_a_request_that_does_not_get_through(
    proxied: tuple[PressureQueue, Proxy], plain: Raw
) -> None:
    """A request that arrived only in part has not run, and is not repeated."""
    q, proxy = proxied
    proxy.cut_after_request_bytes(30, after=b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        q.put_nowait("a")
    assert plain.llen(BASE) == 0
    q.put_nowait("b")
    assert q.get() == b"b"


def test_looking_is_repeated(proxied: tuple[PressureQueue, Proxy]) -> None:
    """Read-only calls are repeated after a lost reply."""
    q, proxy = proxied
    fault = proxy.eat_reply(after=b"EVALSHA")
    assert q.length() == 0
    fault.wait()


def test_a_connection_that_was_closed_meanwhile(
    proxied: tuple[PressureQueue, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection is checked before use, so a restart causes no unknown outcome."""
    q, proxy = proxied
    monkeypatch.setattr(connections, "UNTESTED_IDLE_SECONDS", -1.0)
    with pytest.raises(QueueEmpty):
        q.get(timeout=0.01)  # now there are two connections
    proxy.cut()
    q.put("a")
    proxy.cut()
    assert q.get() == b"a"
    with pytest.raises(QueueEmpty):
        q.get(timeout=0.01)


@pytest.mark.parametrize("kind", ["put", "get"])
def test_a_wait_with_a_failed_connection_returns_its_role(
    proxied: tuple[PressureQueue, Proxy], plain: Raw, turning: Turning, kind: str
) -> None:
    """A wait whose connection fails raises the error; no message moved and the role is free."""
    q, proxy = proxied
    if kind == "put":
        q.put("a")
        q.put("b")
    waiting: Beside[Any] = spawn(q.put, "c") if kind == "put" else spawn(q.get)
    turning.reach("not_full" if kind == "put" else "")
    wait_for(lambda: plain.info("clients")["blocked_clients"] == 1)
    proxy.cut()
    with pytest.raises(RedisConnectionError) as caught:
        waiting.result()
    assert not isinstance(caught.value, OutcomeUnknown)
    assert tokens(plain) == ((1, 1, 0) if kind == "put" else (1, 1, 1))
    assert plain.llen(BASE) == (2 if kind == "put" else 0)


@pytest.mark.parametrize("kind", ["put", "get"])
def test_a_role_that_cannot_be_given_back_yet(
    proxied: tuple[PressureQueue, Proxy], plain: Raw, turning: Turning, kind: str
) -> None:
    """The role can't be given back, as the server is down: the client does that later.

    Until the server is back every call fails. The first call that reaches it gives the role back
    before anything else.
    """
    q, proxy = proxied
    if kind == "put":
        q.put("a")
        q.put("b")
    waiting: Beside[Any] = spawn(q.put, "c") if kind == "put" else spawn(q.get)
    turning.reach("not_full" if kind == "put" else "")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(RedisConnectionError):
        waiting.result()
    assert tokens(plain) == ((0, 1, 0) if kind == "put" else (1, 0, 1))
    for call in (q.exists, q.get_nowait):
        with pytest.raises(RedisConnectionError):
            call()
    proxy.restore()
    assert q.length() == (2 if kind == "put" else 0)
    assert tokens(plain) == ((1, 1, 0) if kind == "put" else (1, 1, 1))


def test_a_pending_role_is_not_taken_from_others(
    proxied: tuple[PressureQueue, Proxy], plain: Raw, turning: Turning
) -> None:
    """If the role was freed and taken by another party meanwhile, the client does
    not give it back.
    """
    q, proxy = proxied
    waiting = spawn(q.get)
    turning.reach("")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(RedisConnectionError):
        waiting.result()
    plain.set(key("consumer"), "the other")
    proxy.restore()
    with pytest.raises(QueueInUse, match="the other"):
        q.get_nowait()
    assert tokens(plain) == (1, 0, 1)


@pytest.mark.parametrize(
    "method, refusal",
    [
        ("watch", MovedError("3999 127.0.0.1:1")),
        ("read", AskError("3999 127.0.0.1:1")),
        ("run_unchanged", TryAgainError("Multiple keys request during rehashing of slot")),
        ("run_unchanged", ReadOnlyError("You can't write against a read only replica.")),
    ],
    ids=["watch", "read", "run", "replica"],
)
def test_a_wait_on_a_server_that_has_the_queue_no_longer(
    make: Make, raw: Raw, monkeypatch: pytest.MonkeyPatch, method: str, refusal: Exception
) -> None:
    """A queue moves to another node during a wait: the wait fails like a
    connection, the role is free.
    """
    q = make()
    q.create()

    def refused(*_args: Any) -> None:
        raise refusal

    monkeypatch.setattr(WatchedConnection, method, refused)
    with pytest.raises(RedisConnectionError) as caught:
        q.get(timeout=20)
    assert caught.value.__cause__ is refusal
    assert tokens(raw) == (1, 1, 1)


@pytest.mark.parametrize("hops", [1, 3, 40])
def test_a_call_follows_its_queue(make: Make, monkeypatch: pytest.MonkeyPatch, hops: int) -> None:
    """A call follows redirections from node to node, but not forever in a circle."""
    q, sent, exchange = make(), list[str](), ProducerConnection.exchange
    q.create()

    def moved(self: ProducerConnection, call: Any, caller: Any) -> Any:
        sent.append(call.script.name)
        if len(sent) <= hops:
            raise MovedError("3999 127.0.0.1:6379")
        return exchange(self, call, caller)

    monkeypatch.setattr(ProducerConnection, "exchange", moved)
    monkeypatch.setattr(connections.PressureServer, "adjust", lambda *_args, **_to: None)
    operations: list[Callable[[], Any]] = [lambda: q.put_nowait("x"), q.length]
    for operation in operations:
        sent.clear()
        if hops < 20:
            operation()
            assert len(sent) == hops + 1
        else:
            with pytest.raises(RedisConnectionError, match="3999"):
                operation()
            assert len(sent) < 20


def test_a_connection_with_unread_replies_is_closed(
    make: Make, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection with unread replies is closed, as the next call would read them."""
    q = make()
    q.create()
    with pytest.raises(QueueEmpty):
        q.get(timeout=0.01)
    (kept,) = q._server._watched

    def run_unchanged(*_args: Any) -> None:
        raise ProtocolError("not the reply to call 7")

    def wait_for_element(*_args: Any, **_options: Any) -> bool:
        monkeypatch.setattr(WatchedConnection, "run_unchanged", run_unchanged)
        return True

    monkeypatch.setattr(WatchedConnection, "wait_for_element", wait_for_element)
    with pytest.raises(ProtocolError):
        q.get()
    assert kept not in q._server._watched


def test_a_reply_that_is_lost_at_the_end_of_a_wait(
    proxied: tuple[PressureQueue, Proxy], plain: Raw, turning: Turning
) -> None:
    """The reply at the end of a wait is lost: the outcome is unknown and the role
    not ours to return.
    """
    q, proxy = proxied
    reader = spawn(q.get)
    turning.reach("")
    proxy.eat_reply(4, after=b"MULTI")
    plain.lpush(BASE, "x")
    with pytest.raises(OutcomeUnknown):
        reader.result()
    assert plain.llen(BASE) == 0
    assert tokens(plain) == (1, 1, 1)
    assert q.counters().consumed_messages == 1


def test_the_last_request_of_a_wait_that_is_lost(
    proxied: tuple[PressureQueue, Proxy], plain: Raw, turning: Turning
) -> None:
    """The last request of a wait is lost: the role is still ours, so it has not run; the error says
    so.
    """
    q, proxy = proxied
    reader = spawn(q.get)
    turning.reach("")
    proxy.cut_after_request_bytes(10, after=b"MULTI")
    plain.lpush(BASE, "x")
    with pytest.raises(RedisConnectionError) as caught:
        reader.result()
    assert not isinstance(caught.value, OutcomeUnknown)
    assert plain.llen(BASE) == 1
    assert tokens(plain) == (1, 1, 1)


@pytest.fixture
def rival(plain: Raw, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a connection that pops the role's token, as other clients do while they wait.

    It blocks behind clients that already wait, and ahead of a new slice of ours.
    """
    monkeypatch.setattr(connections, "BLOCKING_SECONDS", 30.0)
    pool = redis.ConnectionPool(**plain.connection_pool.connection_kwargs)
    conn = pool.get_connection()
    yield conn
    conn.disconnect()


def blocked(plain: Raw, count: int) -> None:
    """Return when this many connections are blocked."""
    wait_for(lambda: plain.info("clients")["blocked_clients"] == count)


def beaten(plain: Raw, rival: Any) -> None:
    """Give the role to the rival connection, after our waiting party was told that it is free."""
    blocked(plain, 1)
    rival.send_command("BRPOP", key("producer_free"), 0)
    blocked(plain, 2)
    plain.lpush(key("producer_free"), 0)
    rival.read_response()


def test_a_party_that_is_always_late_is_served_in_turn(
    server: EmbeddedServer, plain: Raw, rival: Any, turning: Turning
) -> None:
    """A party that always loses the race queues up and is served in turn, and so is
    the next one.
    """
    with PressureQueue("q", server.url) as q:
        q.create()
        plain.rpop(key("producer_free"))
        putting = spawn(q.put, "a")
        turning.reach("producer_free")
        beaten(plain, rival)
        turning.reach()
        blocked(plain, 1)
        rival.send_command("BRPOP", key("producer_free"), 0)
        blocked(plain, 2)
        plain.lpush(key("producer_free"), 0)
        putting.result()
        assert rival.read_response() is not None
        assert plain.lrange(BASE, 0, -1) == [b"a"]
        assert tokens(plain) == (0, 1, 1)


def test_a_recreated_queue_gets_its_token_back(
    server: EmbeddedServer, plain: Raw, rival: Any, turning: Turning
) -> None:
    """A producer waiting for the old queue got the new queue's token, and gives it back."""
    with PressureQueue("q", server.url) as q:
        q.create()
        plain.rpop(key("producer_free"))
        putting = spawn(q.put, "a")
        turning.reach("producer_free")
        beaten(plain, rival)
        turning.reach()
        blocked(plain, 1)
        recreation = plain.pipeline(transaction=True)
        recreation.delete(*plain.keys())
        recreation.set(key("bound"), 5)
        for name in ("producer_free", "consumer_free", "not_full"):
            recreation.lpush(key(name), "0")
        recreation.execute()
        with pytest.raises(QueueMissing, match="deleted while"):
            putting.result()
        assert tokens(plain) == (1, 1, 1)
        assert plain.llen(BASE) == 0


def test_a_full_server_can_be_drained(server: EmbeddedServer, plain: Raw, turning: Turning) -> None:
    """A full server refuses puts with an error; get, close, wait and delete still work."""
    with (
        PressureQueue("q", server.url) as q,
        PressureQueue("q", server.url) as other,
    ):
        q.create()
        q.put("a")
        reader = spawn(other.get)
        assert reader.result() == b"a"
        reader = spawn(other.get)
        turning.reach("")
        plain.config_set("maxmemory", 1)
        for call in (lambda: q.put("b"), lambda: q.put_nowait("b")):
            with pytest.raises(OutOfMemory):
                call()
        with pytest.raises(QueueInUse):
            q.get_nowait()
        plain.config_set("maxmemory", 0)
        plain.config_set("maxmemory-policy", "noeviction")
        q.put("b")
        assert reader.result() == b"b"
        q.put("c")
        plain.config_set("maxmemory", 1)
        assert q.get_nowait() == b"c"
        with pytest.raises(QueueEmpty):
            q.get_nowait()
        with pytest.raises(QueueEmpty):
            q.get(timeout=0.25)
        assert tokens(plain) == (1, 1, 1)
        q.close()
        with pytest.raises(QueueClosed):
            q.get()
        q.delete()
        assert plain.keys() == []


def test_a_wait_on_a_server_that_fills_up(
    server: EmbeddedServer, plain: Raw, turning: Turning
) -> None:
    """A full server refuses to block, so the consumer polls, and gets the message."""
    with PressureQueue("q", server.url) as q:
        q.create()
        reader = spawn(q.get)
        turning.reach("")
        plain.lpush("spare", "x")
        plain.config_set("maxmemory", 1)
        wait_for(lambda: plain.info("clients")["blocked_clients"] == 0)
        plain.rename("spare", BASE)
        assert reader.result() == b"x"
        assert tokens(plain) == (1, 1, 1)
        plain.config_set("maxmemory", 0)


def test_a_producer_on_a_server_that_fills_up(
    server: EmbeddedServer, plain: Raw, turning: Turning
) -> None:
    """A producer that waited for room finds no memory: it raises, and gives the role back."""
    with PressureQueue("q", server.url) as q:
        q.create(1)
        q.put("a")
        putting = spawn(q.put, "b")
        turning.reach("not_full")
        plain.config_set("maxmemory", 1)
        assert q.get() == b"a"
        with pytest.raises(OutOfMemory):
            putting.result()
        assert tokens(plain) == (1, 1, 1)
        plain.config_set("maxmemory", 0)
        q.put("c")
        assert plain.lrange(BASE, 0, -1) == [b"c"]


def test_a_cluster_wants_a_tag(make_server: Callable[..., EmbeddedServer]) -> None:
    """In a cluster a name without a hash tag is refused before any write, with a suggestion."""
    server = clustered(make_server)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_for(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        for name in ("q", "{}q", "}q{"):
            with PressureQueue(name, server.url) as refused:
                with pytest.raises(ConfigurationError, match="in braces, as in"):
                    refused.create()
        assert client.keys() == []
        for queue in (
            PressureQueue("{q}", server.url),
            PressureQueue("q", server.url, prefix="{p}"),
        ):
            with queue:
                queue.create(1)
                reader = spawn(queue.get)
                queue.put("a")
                assert reader.result() == b"a"
                queue.close()
                queue.delete()
        assert client.keys() == []
