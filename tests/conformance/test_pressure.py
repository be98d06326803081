"""The behaviour that parties at a pressure queue rely on, by rows of a checklist.

Each row is run with our clients, synchronous and asyncio, and with an independent foreign one, in
both directions.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pressure._sync.connections import BLOCKING_SECONDS
from tests.conformance.pressure import (
    GO_STATS,
    PREFIX,
    ROLES,
    STATS,
    AsyncOurs,
    Foreign,
    Keys,
    Ours,
    Party,
    Refused,
)
from tests.conformance.pressure_crowd import Crowd
from tests.conformance.pressure_storm import Told, numbers_of
from tests.conftest import REAL, RUNNABLE
from tests.support.backends import Backend, Running
from tests.support.keyspace import Raw, dump
from tests.support.twins import Beside, spawn, wait_for

ROWS = range(1, 29)
KINDS = ("sync", "async", "foreign")
OWN = ("sync", "async")
PAIRS = (
    ("foreign", "foreign"),
    ("sync", "foreign"),
    ("foreign", "sync"),
    ("async", "foreign"),
    ("foreign", "async"),
    ("sync", "async"),
)
FIRST = RUNNABLE[:1] + REAL[:1]
FEW = (("sync", "foreign"), ("async", "foreign"), ("foreign", "sync"))
BRIEF_PAIRS = (("sync", "foreign"), ("foreign", "sync"))
SOON = 3.0
"""Maximum of seconds until a party notices another one's action."""
BRIEF = 0.1
"""A timeout that ends in the test."""
MOMENT = 0.02
"""Seconds after which a call most likely waits."""
FOUR = {"bound", "producer_free", "consumer_free", "not_full"}
DELETE_STEPS = (
    ("LPUSH", "not_full"),
    ("LPUSH", "closed"),
    ("BRPOP", "producer_free"),
    ("DEL", "producer"),
    ("BRPOP", "consumer_free"),
    ("DEL", "consumer"),
    ("DEL", "not_full"),
)
"""Commands before which the bound is removed and the delete not finished."""
BYTES = (
    b"",
    b"\0",
    b"\xff",
    bytes(range(256)),
    b"0",
    b"None",
    b"\r\n$-1\r\n",
    b"x" * 100_000,
)


class Table:
    """The parties of a test, and the keys of their queue.

    Args:
        backend: where their queues are.
        kinds: of the parties at hand: `table.first`, `table.second`.
    """

    def __init__(self, backend: Backend, kinds: tuple[str, ...] = ()) -> None:
        self.backend = backend
        self.raw: Raw = backend.sync_client()
        self.keys = Keys("q")
        self._parties: list[Party] = []
        self._kinds = kinds
        self._numbers = itertools.count(1)

    def party(self, kind: str, name: str = "q", **options: Any) -> Any:
        """Add a party to the table."""
        options = {"client_id": f"{kind}_pid{next(self._numbers)}", **options}
        made: Party
        if kind == "foreign":
            made = Foreign(self.backend.sync_client(), name, **options)
        elif kind == "sync":
            made = Ours(self.backend.sync_client(), name, **options)
        else:
            made = AsyncOurs(self.backend.async_client, name, **options)
        self._parties.append(made)
        return made

    def pair(self, **options: Any) -> tuple[Any, ...]:
        """Return parties of the two kinds of this test."""
        return tuple(self.party(kind, **options) for kind in self._kinds)

    def close(self) -> None:
        """Close all of them."""
        while self._parties:
            self._parties.pop().disconnect()

    # Inspecting the keys.

    def tokens(self) -> tuple[int, int, int]:
        """Return the lengths of producer_free, consumer_free and not_full."""
        free = (self.raw.llen(self.keys(f"{role}_free")) for role in ROLES)
        return (*free, self.raw.llen(self.keys("not_full")))  # type: ignore[return-value]

    def counters(self) -> tuple[int, ...]:
        """Return messages and bytes, in and out."""
        return tuple(int(self.raw.get(self.keys(f"stats:{name}")) or 0) for name in STATS)

    def messages(self) -> list[bytes]:
        """Return the waiting messages, oldest first."""
        return list(reversed(self.raw.lrange(self.keys(), 0, -1)))

    def whole(self) -> dict[bytes, Any]:
        """Return all keys with their values, except the names of the last holders of roles."""
        last = {self.keys(role).encode() for role in ROLES}
        return {key: value for key, value in dump(self.raw).items() if key not in last}

    def check_at_rest(self) -> None:
        """Check that both roles are free, and the token of room is correct."""
        bound = int(self.raw.get(self.keys("bound")))
        room = bound == 0 or self.raw.llen(self.keys()) < bound
        assert self.tokens() == (1, 1, int(room))

    def until_held(self, role: str, party: Any) -> None:
        """Return when this party holds the role and waits for room or a message."""
        wait_for(lambda: self.holder(role) == party.client_id)

    def holder(self, role: str) -> str | None:
        """Return the holder of the role, or None if it is free."""
        if self.raw.exists(self.keys(f"{role}_free")):
            return None
        return str((self.raw.get(self.keys(role)) or b"").decode())

    def spawn(self, function: Callable[..., Any], *args: Any, **options: Any) -> Beside[Any]:
        """Run a call that will wait, and return when it does.

        A server's count of blocked clients shows it. fakeredis has none, so the test pauses shortly
        there and must not rely on it.
        """
        before = self.blocked()
        beside = spawn(function, *args, **options)
        if self.backend.is_fake:
            time.sleep(MOMENT)
        else:
            wait_for(lambda: self.blocked() > before or beside.is_done)
        return beside

    def blocked(self) -> int:
        """Count the clients of the server in a blocking command."""
        return 0 if self.backend.is_fake else int(self.raw.info("clients")["blocked_clients"])


def kind_of(call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the kind of a call's refusal, or `done`."""
    try:
        call(*args, **options)
    except Refused as refused:
        return refused.kind
    return "done"


def end_of(beside: Beside[Any]) -> str:
    """Return the kind of refusal of a call in another thread that ends soon, or `done`."""
    return kind_of(beside.result, SOON)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Set the place of a table: `table` at each back end, `brief_table` at fakeredis and one
    server.

    There all pairs of parties are tested; elsewhere two, as the asyncio client sends the same.
    """
    names = metafunc.fixturenames
    if "place" not in names:
        return
    specs = RUNNABLE if "table" in names else FIRST
    if "pair" not in names:
        metafunc.parametrize("place", specs, ids=lambda spec: spec.name, indirect=True)
        return
    found = [(spec, two) for spec in specs for two in (PAIRS if spec in FIRST else BRIEF_PAIRS)]
    ids = [f"{spec.name}-{'-'.join(two)}" for spec, two in found]
    metafunc.parametrize("place,pair", found, indirect=True, ids=ids)


@pytest.fixture
def place(request: pytest.FixtureRequest, running_backends: Running) -> Iterator[Backend]:
    """An empty back end."""
    with running_backends.get(request.param).acquired() as acquired:
        yield acquired


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two kinds of parties."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str]:
    """A party of each kind."""
    return (request.param,)


@pytest.fixture(params=FEW, ids="-".join)
def few(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two kinds of parties, for tests that mostly wait."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(params=OWN)
def own(request: pytest.FixtureRequest) -> tuple[str, str]:
    """One of our parties, and a foreign one."""
    return (request.param, "foreign")


def _kinds(request: pytest.FixtureRequest) -> tuple[str, ...]:
    for name in ("pair", "few", "kind", "own"):
        if name in request.fixturenames:
            found: tuple[str, ...] = request.getfixturevalue(name)
            return found
    return ()


@pytest.fixture
def table(place: Backend, request: pytest.FixtureRequest) -> Iterator[Table]:
    """A table at each back end."""
    made = Table(place, _kinds(request))
    yield made
    made.close()


@pytest.fixture
def brief_table(place: Backend, request: pytest.FixtureRequest) -> Iterator[Table]:
    """A table at fakeredis and at one server: for tests that wait."""
    made = Table(place, _kinds(request))
    yield made
    made.close()


# -- the list -----------------------------------------------------------------------------------


def test_every_row_has_a_test() -> None:
    """Each number of the checklist starts the docstring of a test here."""
    tests = [one for name, one in globals().items() if name.startswith("test_")]
    heads = [(one.__doc__ or "").partition(":")[0] for one in tests]
    found = {int(row) for head in heads for row in re.findall(r"\bP-(\d+)\b", head)}
    assert found == set(ROWS)


# -- P-1 to P-4: create and exists --------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1, 12345])
def test_create_makes_four_keys(kind: tuple[str], bound: int, table: Table) -> None:
    """P-1: the bound as decimal text and three lists of one element, none of which expires."""
    (party,) = table.pair()
    party.create(bound)
    made = table.whole()
    assert set(made) == {table.keys(suffix).encode() for suffix in FOUR}
    assert not any(vanishes for _, vanishes in made.values())
    assert table.raw.get(table.keys("bound")) == b"%d" % bound
    assert table.tokens() == (1, 1, 1)


def test_create_on_an_existing_queue(pair: tuple[str, str], table: Table) -> None:
    """P-2: it fails and changes nothing, whatever the queue's content is."""
    first, second = table.pair()
    first.create(3)
    for fill in range(3):
        before = dump(table.raw)
        for bound in (0, 3, 7):
            assert kind_of(second.create, bound) == "exists"
        assert dump(table.raw) == before
        first.put_nowait(b"%d" % fill)
    first.close()
    before = dump(table.raw)
    assert kind_of(second.create, 3) == "exists"
    assert dump(table.raw) == before


def test_looking_takes_no_role(pair: tuple[str, str], table: Table) -> None:
    """P-3: exists, length and closed work while both roles are held, and write nothing."""
    first, second = table.pair()
    assert not second.exists()
    assert [kind_of(call) for call in (second.length, second.closed)] == ["missing"] * 2
    first.create(5)
    for message in (b"a", b"b"):
        first.put_nowait(message)
    for role in ROLES:
        table.raw.rpop(table.keys(f"{role}_free"))
    before = dump(table.raw)
    assert (second.exists(), second.length(), second.closed()) == (True, 2, False)
    assert dump(table.raw) == before
    table.raw.lpush(table.keys("closed"), 0, 0)
    assert (second.length(), second.closed()) == (2, True)


def test_operations_on_a_missing_queue(kind: tuple[str], table: Table) -> None:
    """P-4: all of them fail, at once, and create no key."""
    (party,) = table.pair()
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (party.put, (b"x",)),
        (party.put, (b"x", 1)),
        (party.put, (b"x", None, True)),
        (party.put_nowait, (b"x",)),
        (party.put_nowait, (b"x", True)),
        (party.get, ()),
        (party.get, (1,)),
        (party.get_nowait, ()),
        (party.peek_reverse, ()),
        (party.peek_reverse, (1,)),
        (party.peek_reverse_nowait, ()),
        (party.close, ()),
        (party.delete, ()),
        (party.length, ()),
        (party.closed, ()),
    ]
    if kind != ("foreign",):
        calls += [(party.free_role, (role,)) for role in ROLES]
        calls += [
            (party.counters, ()),
            (party.bound, ()),
            (party.close, (1,)),
            (party.delete, (1,)),
        ]
    assert [kind_of(call, *args) for call, args in calls] == ["missing"] * len(calls)
    assert not table.raw.dbsize()


# -- P-5, P-6: messages -------------------------------------------------------------------------


def test_bytes_are_unchanged(pair: tuple[str, str], table: Table) -> None:
    """P-5: any bytes reach the other party unchanged, by each way of putting and getting."""
    first, second = table.pair()
    first.create()
    for message in BYTES:
        first.put_nowait(message)
        assert second.get_nowait() == message
        second.put(message)
        assert first.get() == message
    assert not table.messages()


def test_bytes_are_unchanged_for_a_waiting_getter(
    pair: tuple[str, str], brief_table: Table
) -> None:
    """P-5: any bytes reach a getter that already waits."""
    first, second = brief_table.pair()
    first.create(1)
    for message in (b"", b"0", b"None", b"\xff\0"):
        waiting = spawn(second.get)
        brief_table.until_held("consumer", second)
        first.put_nowait(message)
        assert waiting.result(SOON) == message


def test_order_across_parties(pair: tuple[str, str], table: Table) -> None:
    """P-6: first in, first out, for all parties; pushed left, popped right."""
    parties = itertools.cycle(table.pair())
    sent = [b"%d" % n for n in range(20)]
    next(parties).create()
    for number, message in enumerate(sent):
        party = next(parties)
        (party.put, party.put_nowait)[number // 2 % 2](message)
    assert table.raw.lrange(table.keys(), 0, -1) == sent[::-1]
    got = []
    for number in range(len(sent)):
        party = next(parties)
        got.append((party.get, party.get_nowait)[number // 3 % 2]())
    assert got == sent


def test_order_of_simultaneous_messages(kind: tuple[str], brief_table: Table) -> None:
    """P-6: a consumer woken by several messages gets the first; the others stay in order."""
    table = brief_table
    (party,) = table.pair()
    party.create()
    waiting = table.spawn(party.get)
    table.until_held("consumer", party)
    table.raw.lpush(table.keys(), b"1", b"2", b"3")
    assert waiting.result(SOON) == b"1"
    assert table.messages() == [b"2", b"3"]


# -- P-7, P-8: bounds and tokens ----------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 4])
def test_a_bound_accepts_so_many(pair: tuple[str, str], bound: int, table: Table) -> None:
    """P-7: put_nowait accepts as many as the bound; one more is refused and not counted."""
    parties = table.pair()
    parties[0].create(bound)
    for number in range(bound):
        parties[number % 2].put_nowait(b"abc")
    before = table.whole()
    assert [kind_of(party.put_nowait, b"more") for party in parties] == ["full"] * 2
    assert table.whole() == before
    assert table.tokens() == (1, 1, 0)
    assert table.counters() == (bound, 3 * bound, 0, 0)


@pytest.mark.parametrize("bound", [0, 2])
def test_tokens_after_each_operation(pair: tuple[str, str], bound: int, table: Table) -> None:
    """P-8: after any operation or refusal both roles are free, and not_full tells
    if there is room.
    """
    parties = table.pair()
    parties[0].create(bound)
    deeds = ["get_nowait", "get", *["put_nowait"] * 2, "put", "put_nowait"]
    deeds += ["get", "peek_reverse", "put_nowait", *["get_nowait"] * 4, "create", "put"]
    deeds += ["peek_reverse_nowait", "close", "put", "put_nowait", "close", "peek_reverse"]
    deeds += ["get", "get_nowait", "get", "get_nowait", "peek_reverse", "peek_reverse_nowait"]
    table.check_at_rest()
    for turn, deed in enumerate(deeds):
        party = parties[turn % 2]
        args: tuple[Any, ...] = {
            "put": (b"x", MOMENT),
            "put_nowait": (b"x",),
            "get": (MOMENT,),
            "create": (bound + 1,),
        }.get(deed, ())
        kind_of(getattr(party, deed), *args)
        table.check_at_rest()
    assert table.raw.exists(table.keys("closed"))


def test_the_last_acting_party_is_stored(pair: tuple[str, str], table: Table) -> None:
    """P-8: each operation that takes a role stores its party, even without a wait."""
    parties = table.pair()
    parties[0].create(1)
    deeds = (("put_nowait", b"x"), ("get_nowait",), ("put", b"x"), ("get",))
    for number, (deed, *args) in enumerate(deeds * 2):
        party = parties[number // 2 % 2]
        getattr(party, deed)(*args)
        role = "producer" if "put" in deed else "consumer"
        assert table.raw.get(table.keys(role)) == party.client_id.encode()
    for number, deed in enumerate(("peek_reverse", "peek_reverse_nowait", "close")):
        party = parties[(number + 1) % 2]
        getattr(party, deed)()
        assert table.raw.get(table.keys("producer")) == party.client_id.encode()


# -- additions of the Python client to the text -------------------------------------------------


def test_peek_reverse_shows_the_newest(pair: tuple[str, str], table: Table) -> None:
    """The message stays, and only the producer's id changes; closed and empty raises."""
    first, second = table.pair()
    first.create(3)
    assert second.peek_reverse() is None
    assert second.peek_reverse_nowait() is None
    for message in (b"old", b"", b"new \xff"):
        first.put_nowait(message)
        before = table.whole()
        assert second.peek_reverse() == second.peek_reverse_nowait() == message
        assert table.whole() == before
    first.close()
    assert [second.peek_reverse(), second.peek_reverse_nowait()] == [b"new \xff"] * 2
    assert [first.get() for _ in range(3)] == [b"old", b"", b"new \xff"]
    assert [kind_of(second.peek_reverse), kind_of(second.peek_reverse_nowait)] == ["closed"] * 2
    table.check_at_rest()


def test_peek_reverse_waits_for_the_producer(pair: tuple[str, str], brief_table: Table) -> None:
    """It waits for a put that waits for room, and then returns that message."""
    table = brief_table
    first, second = table.pair()
    first.create(1)
    first.put_nowait(b"1")
    putting = spawn(first.put, b"2")
    table.until_held("producer", first)
    with pytest.raises(Refused, match="in_use") as caught:
        second.peek_reverse_nowait()
    assert caught.value.holder == first.client_id
    assert kind_of(second.peek_reverse, BRIEF) == "in_use"
    peeking = table.spawn(second.peek_reverse)
    consumer = table.party("sync")
    assert consumer.get_nowait() == b"1"
    putting.result(SOON)
    assert peeking.result(SOON) == b"2"
    table.check_at_rest()


def test_a_waiting_peek_reverse_while_the_queue_is_closed(
    own: tuple[str, str], brief_table: Table
) -> None:
    """It returns while messages are left, and raises when the closed queue is empty."""
    table = brief_table
    mine, other = table.pair()
    mine.create()
    for message in (b"1", None):
        if message:
            other.put_nowait(message)
        table.raw.rpop(table.keys("producer_free"))
        peeking = table.spawn(mine.peek_reverse)
        table.raw.lpush(table.keys("closed"), 0, 0)
        if message is None:
            assert end_of(peeking) == "closed"
        table.raw.lpush(table.keys("producer_free"), 0)
        if message:
            assert peeking.result(SOON) == b"1"
            assert other.get_nowait() == b"1"
            table.raw.delete(table.keys("closed"))
    table.check_at_rest()


@pytest.mark.parametrize("verb", ["put", "get", "peek_reverse"])
def test_unblock_ends_a_wait(verb: str, own: tuple[str, str], brief_table: Table) -> None:
    """The role is given back, no message was put or taken, and later calls wait again."""
    table = brief_table
    mine, other = table.pair()
    mine.create(1)
    if verb == "put":
        mine.put_nowait(b"1")
    if verb == "peek_reverse":
        table.raw.rpop(table.keys("producer_free"))
    for _ in range(2):
        waiting = table.spawn(getattr(mine, verb), *([b"2"] if verb == "put" else []))
        if verb != "peek_reverse":
            table.until_held("producer" if verb == "put" else "consumer", mine)
        mine.queue.unblock()
        assert end_of(waiting) == "unblocked"
    if verb == "peek_reverse":
        table.raw.lpush(table.keys("producer_free"), 0)
    table.check_at_rest()
    assert table.messages() == ([b"1"] if verb == "put" else [])
    if verb == "put":
        assert other.get_nowait() == b"1"
    other.put_nowait(b"3")
    assert mine.get() == b"3"


def test_delete_removes_the_counters_of_the_go_client(own: tuple[str, str], table: Table) -> None:
    """They are removed with the queue; leftovers of another deletion go with the next queue."""
    mine, _ = table.pair()
    go = table.party("foreign", go=True)
    for _ in range(2):
        mine.create(2)
        go.put_nowait(b"abc")
        assert go.get_nowait() == b"abc"
        counted = table.raw.mget([table.keys(name) for name in GO_STATS])
        assert [int(one) for one in counted] == [1, 3, 1, 3]
        mine.delete()
        assert not table.raw.dbsize()
    for name in GO_STATS:
        table.raw.set(table.keys(name), 5)
    mine.create()
    assert not table.raw.exists(*map(table.keys, GO_STATS))


# -- P-9 to P-12: waiting -----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["get", "get_nowait"])
def test_put_waits_for_room(pair: tuple[str, str], way: str, brief_table: Table) -> None:
    """P-9: a put on a full queue waits, and ends soon after the other party's get."""
    first, second = brief_table.pair()
    first.create(1)
    first.put_nowait(b"1")
    waiting = spawn(first.put, b"2")
    brief_table.until_held("producer", first)
    assert not waiting.is_done
    assert getattr(second, way)() == b"1"
    waiting.result(SOON)
    assert brief_table.messages() == [b"2"]
    brief_table.check_at_rest()


@pytest.mark.parametrize("way", ["put", "put_nowait"])
def test_get_waits_for_a_message(pair: tuple[str, str], way: str, brief_table: Table) -> None:
    """P-10: a get on an empty queue waits, and returns soon after the other party's put."""
    first, second = brief_table.pair()
    first.create(1)
    waiting = spawn(first.get)
    brief_table.until_held("consumer", first)
    assert not waiting.is_done
    getattr(second, way)(b"1")
    assert waiting.result(SOON) == b"1"
    assert brief_table.counters() == (1, 1, 1, 1)
    brief_table.check_at_rest()


def test_a_waiting_party_holds_its_role(pair: tuple[str, str], brief_table: Table) -> None:
    """P-11: while a party waits its role is taken in its name; others are refused, and change
    nothing.

    The other role stays free.
    """
    table = brief_table
    first, second = table.pair()
    first.create(1)
    getting = spawn(first.get)
    table.until_held("consumer", first)
    with pytest.raises(Refused, match="in_use") as refused:
        second.get_nowait()
    assert refused.value.holder == first.client_id
    assert table.tokens() == (1, 0, 1)
    assert table.holder("consumer") == first.client_id
    second.put_nowait(b"1")
    assert getting.result(SOON) == b"1"
    second.put_nowait(b"2")
    putting = spawn(first.put, b"3")
    table.until_held("producer", first)
    with pytest.raises(Refused, match="in_use") as refused:
        second.put_nowait(b"4")
    assert refused.value.holder == first.client_id
    assert table.tokens() == (0, 1, 0)
    assert table.holder("producer") == first.client_id
    assert second.get_nowait() == b"2"
    putting.result(SOON)
    assert table.messages() == [b"3"]


def test_waiting_for_a_role(pair: tuple[str, str], brief_table: Table) -> None:
    """P-12: a party that finds a role taken waits, and gets it when the holder is done."""
    table = brief_table
    first, second = table.pair()
    first.create(1)
    getting = spawn(first.get)
    table.until_held("consumer", first)
    next_one = table.spawn(second.get)
    assert not next_one.is_done
    second.put_nowait(b"1")
    assert getting.result(SOON) == b"1"
    second.put_nowait(b"2")
    assert next_one.result(SOON) == b"2"
    second.put_nowait(b"3")
    putting = spawn(first.put, b"4")
    table.until_held("producer", first)
    after = table.spawn(second.put, b"5")
    assert not after.is_done
    assert [second.get_nowait(), second.get(), second.get()] == [b"3", b"4", b"5"]
    putting.result(SOON)
    after.result(SOON)
    table.check_at_rest()


# -- P-13 to P-16: close ------------------------------------------------------------------------


def test_close_wakes_all_getters(kind: tuple[str], brief_table: Table) -> None:
    """P-13: the waiting get and those behind it end with closed; the queue stays closed."""
    table = brief_table
    (closer,) = table.pair()
    closer.create()
    first = KINDS.index(kind[0]) + 1
    waiting = [
        table.spawn(table.party(each).get) for each in itertools.islice(KINDS * 2, first, first + 3)
    ]
    closer.close()
    assert [end_of(one) for one in waiting] == ["closed"] * 3
    assert table.raw.llen(table.keys("closed")) >= 1
    assert closer.closed()
    assert table.tokens() == (1, 1, 1)


def test_a_closed_queue_drains(pair: tuple[str, str], table: Table) -> None:
    """P-14: puts are refused; gets return the remaining messages, then fail."""
    first, second = table.pair()
    first.create(5)
    for message in (b"1", b"2", b"3", b"4"):
        first.put_nowait(message)
    second.close()
    for party in (first, second):
        refused = [
            kind_of(party.put, b"x"),
            kind_of(party.put_nowait, b"x"),
            kind_of(party.close),
        ]
        assert refused == ["closed"] * 3
    assert [second.get(), first.get_nowait(), first.get(), second.get_nowait()] == [
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    for party in (first, second):
        assert [kind_of(party.get), kind_of(party.get_nowait)] == ["closed"] * 2
    assert table.counters() == (4, 4, 4, 4)
    table.check_at_rest()


def test_close_adds_two_sentinels(kind: tuple[str], table: Table) -> None:
    """P-13: a woken foreign get pops one of them, and the queue stays closed."""
    (party,) = table.pair()
    party.create()
    party.close()
    assert table.raw.llen(table.keys("closed")) == 2


def test_waiting_for_a_role_on_a_closed_queue(own: tuple[str, str], brief_table: Table) -> None:
    """P-14: a get that waits for the role is not refused while messages are left."""
    table = brief_table
    mine, other = table.pair()
    mine.create()
    for message in (b"1", b"2"):
        mine.put_nowait(message)
    mine.close()
    getting = other.walk("get").before("INCR", "stats:consumed_messages")
    looks_twice = 2 * BRIEF if table.backend.is_fake else BLOCKING_SECONDS + BRIEF
    assert kind_of(mine.get, looks_twice) == "in_use"
    assert getting.finish() == b"1"
    assert mine.get() == b"2"
    assert kind_of(mine.get) == "closed"


def test_over_filling_a_closed_queue(own: tuple[str, str], table: Table) -> None:
    """P-14: over-filling a closed queue is refused too."""
    mine, other = table.pair()
    mine.create(1)
    other.close()
    refused = [kind_of(mine.put, b"x", None, True), kind_of(mine.put_nowait, b"x", True)]
    assert refused == ["closed"] * 2


@pytest.mark.parametrize("message", [b"0", b"data"])
def test_data_before_the_end(kind: tuple[str], message: bytes, brief_table: Table) -> None:
    """P-15: when a message and a close arrive together, the waiting get returns the message."""
    table = brief_table
    (party,) = table.pair()
    party.create()
    waiting = spawn(party.get)
    table.until_held("consumer", party)
    with table.raw.pipeline() as both:
        both.lpush(table.keys(), message).lpush(table.keys("closed"), 0, 0).execute()
    assert waiting.result(SOON) == message
    assert kind_of(party.get) == "closed"


def test_iteration_ends_with_the_queue(own: tuple[str, str], brief_table: Table) -> None:
    """P-15: iteration returns each message, also one that looks like a sentinel, then ends."""
    mine, other = brief_table.pair()
    mine.create()
    other.put(b"0")
    seen = spawn(mine.each)
    for message in (b"", b"0", b"last"):
        other.put(message)
    other.close()
    assert seen.result() == [b"0", b"", b"0", b"last"]
    brief_table.check_at_rest()


def test_close_waits_for_a_stuck_producer(pair: tuple[str, str], brief_table: Table) -> None:
    """P-16: a close waits for a put on a full queue, whose message is delivered."""
    table = brief_table
    first, second = table.pair()
    first.create(1)
    first.put_nowait(b"1")
    stuck = spawn(first.put, b"2")
    table.until_held("producer", first)
    closing = table.spawn(second.close)
    assert not closing.is_done
    assert not second.closed()
    assert first.get() == b"1"
    stuck.result(SOON)
    closing.result(SOON)
    assert second.get() == b"2"
    assert kind_of(second.get) == "closed"


# -- P-17: counters -----------------------------------------------------------------------------


def test_counters(pair: tuple[str, str], table: Table) -> None:
    """P-17: messages and bytes of both parties are counted, also after close, in no other key."""
    first, second = table.pair()
    first.create(4)
    snowman = "\N{SNOWMAN}".encode()
    first.put_nowait(snowman)
    second.put(b"")
    first.put(b"\0\0")
    assert table.counters() == (3, 5, 0, 0)
    assert second.get() == snowman
    assert table.counters() == (3, 5, 1, 3)
    second.put_nowait(b"12345678")
    first.close()
    assert [first.get_nowait(), second.get(), first.get()] == [b"", b"\0\0", b"12345678"]
    assert table.counters() == (4, 13, 4, 13)
    assert {key.decode() for key in table.raw.scan_iter()} <= set(table.keys.all())


def test_counters_as_we_read_them(own: tuple[str, str], table: Table) -> None:
    """P-17: our counters cover both parties; text counts as its sent bytes."""
    mine, other = table.pair()
    mine.create()
    assert tuple(mine.counters()) == (0, 0, 0, 0)
    mine.put("\N{SNOWMAN}")
    other.put(b"ab")
    other.get()
    read = mine.counters()
    assert tuple(read) == table.counters() == (2, 5, 1, 3)
    assert tuple(getattr(read, name) for name in STATS) == tuple(read)


# -- P-18 to P-20: which bound applies ----------------------------------------------------------


def test_no_bound(pair: tuple[str, str], table: Table) -> None:
    """P-18: with bound 0 there is room for all parties, the creator too."""
    parties = table.pair()
    parties[0].create(0)
    for number in range(30):
        parties[number % 2].put(b"%d" % number, 1)
        parties[number % 2].put_nowait(b"more")
    assert parties[1].length() == 60
    table.check_at_rest()


@pytest.mark.parametrize("way", ["put", "put_nowait"])
def test_over_filling(pair: tuple[str, str], way: str, table: Table) -> None:
    """P-19: no party can put into an over-filled queue until it is below the bound."""
    first, second = table.pair()
    first.create(2)
    for message in (b"1", b"2"):
        second.put_nowait(message)
    for message in (b"3", b"4"):
        getattr(first, way)(message, overfill=True)
    for left in (4, 3, 2):
        assert table.raw.llen(table.keys()) == left
        assert [kind_of(party.put_nowait, b"x") for party in (first, second)] == ["full"] * 2
        table.check_at_rest()
        (second if left % 2 else first).get_nowait()
    table.check_at_rest()
    second.put_nowait(b"5")
    assert table.messages() == [b"4", b"5"]


def test_a_consumer_that_pushes_room_without_a_check(own: tuple[str, str], table: Table) -> None:
    """P-19: a client of the older rule opens an over-filled queue; ours checks its length."""
    mine, _ = table.pair()
    old = table.party("foreign", old_room=True)
    mine.create(2)
    for message in (b"1", b"2", b"3", b"4"):
        mine.put_nowait(message, overfill=True)
    assert old.get() == b"1"
    assert table.tokens() == (1, 1, 1), "the older rule"
    assert kind_of(mine.put_nowait, b"x") == "full"
    assert kind_of(mine.put, b"x", BRIEF) == "full"
    assert [old.get(), old.get()] == [b"2", b"3"]
    mine.put(b"5", 5)
    assert table.messages() == [b"4", b"5"]
    table.check_at_rest()


def test_a_token_for_room_that_comes_late(own: tuple[str, str], table: Table) -> None:
    """P-7: a foreign consumer reads the length, and pushes a token of room when there is none.

    Two puts came between these steps. Ours does not exceed the bound.
    """
    mine, other = table.pair()
    mine.create(2)
    mine.put_nowait(b"1")
    getting = other.walk("get").before("LPUSH", "not_full")
    for message in (b"2", b"3"):
        mine.put_nowait(message)
    assert getting.finish() == b"1"
    assert table.tokens() == (1, 1, 1), "late"
    assert kind_of(mine.put_nowait, b"4") == "full"
    assert kind_of(mine.put, b"4", BRIEF) == "full"
    assert mine.get_nowait() == b"2"
    mine.put_nowait(b"4")
    table.check_at_rest()


def test_a_token_of_room_lost_with_its_holder(own: tuple[str, str], table: Table) -> None:
    """P-26: a foreign producer died between taking the token of room and its put.

    When the role is freed there is room again, as ours checks the length.
    """
    mine, other = table.pair()
    mine.create(2)
    other.walk("put", b"lost").before("LPUSH", "")
    assert table.tokens() == (0, 1, 0)
    assert mine.free_role("producer")
    mine.put_nowait(b"1")
    table.check_at_rest()


def test_a_handle_older_than_its_queue(pair: tuple[str, str], table: Table) -> None:
    """P-20: a handle older than its queue, or than its re-creation, obeys the current bound."""
    first, second = table.pair()
    first.create(2)
    for bound in (2, 1, 3, 0):
        for _ in range(bound):
            second.put_nowait(b"x")
        assert kind_of(second.put_nowait, b"x") == ("full" if bound else "done")
        if bound:
            second.get_nowait()
            table.check_at_rest()
        first.close()
        assert second.closed()
        first.delete()
        assert not second.exists()
        first.create({2: 1, 1: 3, 3: 0, 0: 5}[bound])
        assert not second.closed()


def test_with_a_party_that_caches_the_bound(own: tuple[str, str], table: Table) -> None:
    """P-20: a foreign client that read the bound once over-fills a re-created
    queue; ours does not.
    """
    mine, _ = table.pair()
    mine.create(3)
    other = table.party("foreign", remembers=True)
    mine.delete()
    mine.create(1)
    mine.put_nowait(b"1")
    assert mine.get_nowait() == b"1"
    other.put_nowait(b"2")
    assert table.tokens() == (1, 1, 1), "it thinks of the bound that was"
    other.put_nowait(b"3")
    assert table.tokens() == (1, 1, 1)
    assert kind_of(mine.put, b"x", BRIEF) == "full"
    table.check_at_rest()  # ours has corrected it
    assert kind_of(other.put_nowait, b"x") == "full"
    assert [mine.get(), mine.get()] == [b"2", b"3"]
    table.check_at_rest()


# -- P-21: delete -------------------------------------------------------------------------------


def test_delete_leaves_nothing(pair: tuple[str, str], table: Table) -> None:
    """P-21: no key is left, the second delete fails, and the name can be used again."""
    first, second = table.pair()
    for bound, closes in ((1, False), (0, True), (4, True)):
        first.create(bound)
        assert (second.exists(), second.length(), second.closed()) == (True, 0, False)
        first.put_nowait(b"x")
        second.put_nowait(b"y") if bound != 1 else None
        assert first.get_nowait() == b"x"
        if closes:
            second.close()
        second.delete()
        assert not table.raw.dbsize()
        assert [kind_of(party.delete) for party in (first, second)] == ["missing"] * 2
        assert not table.raw.dbsize()


def test_delete_while_others_wait(pair: tuple[str, str], brief_table: Table) -> None:
    """P-21: a waiting get ends with closed or missing, a waiting put ends, and no key is left.

    The foreign put returns as if it had succeeded, ours is refused.
    """
    table = brief_table
    first, second = table.pair()
    first.create(1)
    first.put_nowait(b"1")
    putting = spawn(first.put, b"2")
    table.until_held("producer", first)
    second.delete()
    assert end_of(putting) in (("done", "closed") if isinstance(first, Foreign) else ("missing",))
    assert not table.raw.dbsize()
    second.create()
    getting = spawn(first.get)
    table.until_held("consumer", first)
    second.delete()
    assert end_of(getting) in ("closed", "missing")
    assert not table.raw.dbsize()
    second.create(1)
    second.put_nowait(b"x")
    assert (second.length(), second.closed(), table.tokens()) == (1, False, (1, 1, 0))


# -- P-22: time limits --------------------------------------------------------------------------


def test_time_limits(few: tuple[str, str], brief_table: Table) -> None:
    """P-22: a wait for a message or room times out and changes nothing."""
    table = brief_table
    first, second = table.pair()
    second.create(1)
    before = table.whole()
    start = time.monotonic()
    assert kind_of(first.get, BRIEF) == "empty"
    assert BRIEF * 0.9 < time.monotonic() - start < SOON
    assert table.whole() == before
    second.put(b"1")
    before = table.whole()
    start = time.monotonic()
    assert kind_of(first.put, b"2", BRIEF) == "full"
    assert BRIEF * 0.9 < time.monotonic() - start < SOON
    assert table.whole() == before
    assert second.get(BRIEF) == b"1"
    second.put(b"2", BRIEF)
    table.check_at_rest()


def test_time_limits_of_waits_for_a_role(few: tuple[str, str], brief_table: Table) -> None:
    """P-22: a wait for a role times out, names the holder, and changes nothing.

    The holder is not disturbed.
    """
    table = brief_table
    first, second = table.pair()
    second.create(1)
    getting = spawn(second.get)
    table.until_held("consumer", second)
    before = dump(table.raw)
    start = time.monotonic()
    with pytest.raises(Refused, match="in_use") as refused:
        first.get(BRIEF)
    assert BRIEF * 0.9 < time.monotonic() - start < SOON
    assert refused.value.holder == second.client_id
    assert dump(table.raw) == before
    first.put_nowait(b"1")
    assert getting.result(SOON) == b"1"
    first.put_nowait(b"2")
    putting = spawn(second.put, b"3")
    table.until_held("producer", second)
    before = dump(table.raw)
    for call in (lambda: first.put(b"x", BRIEF), lambda: first.close(BRIEF)):
        start = time.monotonic()
        with pytest.raises(Refused, match="in_use") as refused:
            call()
        assert BRIEF * 0.9 < time.monotonic() - start < SOON
        assert refused.value.holder == second.client_id
        assert dump(table.raw) == before
    assert first.get() == b"2"
    putting.result(SOON)
    table.check_at_rest()


# -- P-24, P-25: the steps of the original's delete ---------------------------------------------


def test_a_producer_between_the_steps_of_a_delete(own: tuple[str, str], brief_table: Table) -> None:
    """P-24: a put of ours between two steps of a foreign delete lets the delete finish."""
    table = brief_table
    mine, other = table.pair()
    for command, suffix in DELETE_STEPS:
        mine.create(1)
        mine.put_nowait(b"1")
        deleting = other.walk("delete").before(command, suffix)
        assert kind_of(mine.put, b"2", 5) == "missing"
        assert kind_of(mine.put_nowait, b"2") == "missing"
        assert kind_of(mine.get, 5) == "missing"
        spawn(deleting.finish).result()
        assert not table.raw.dbsize()


def test_a_producer_queued_up_when_a_delete_begins(
    own: tuple[str, str], brief_table: Table
) -> None:
    """P-24: one party holds the producer role, one waits for it; both end, and so
    does the delete.
    """
    table = brief_table
    mine, other = table.pair()
    mine.create(1)
    mine.put_nowait(b"1")
    holder = table.party("foreign")
    stuck = spawn(holder.put, b"2")
    table.until_held("producer", holder)
    queued = table.spawn(mine.put, b"3")
    deleting = other.walk("delete").before("LPUSH", "closed")  # the token of room is taken
    stuck.result(SOON)
    assert end_of(queued) == "missing"
    spawn(deleting.finish).result()
    assert not table.raw.dbsize()


# -- P-23: a queue and its successor of the same name -------------------------------------------


def replace(table: Table, bound: int, *messages: bytes) -> None:
    """Delete, re-create and fill the queue in one transaction."""
    with table.raw.pipeline() as all_at_once:
        all_at_once.delete(*table.keys.all()).set(table.keys("bound"), bound)
        for suffix in sorted(FOUR - {"bound"}):
            all_at_once.lpush(table.keys(suffix), 0)
        for message in messages:
            all_at_once.lpush(table.keys(), message)
        all_at_once.execute()


def delete_and_create(table: Table, bound: int, *messages: bytes) -> None:
    """Let foreign clients delete and create; one first returns the role of an unknown party."""
    other = table.party("foreign")
    deleting = spawn(other.delete)
    wait_for(lambda: not table.raw.exists(table.keys("bound")))
    for role in ROLES:
        if table.raw.get(table.keys(role)) == b"unknown":
            table.raw.lpush(table.keys(f"{role}_free"), 0)
    deleting.result()
    other.create(bound)
    for message in messages:
        table.raw.lpush(table.keys(), message)


REPLACEMENTS = pytest.mark.parametrize(
    "replaced", [replace, delete_and_create], ids=["at-once", "by-clients"]
)


@REPLACEMENTS
def test_a_wait_longer_than_its_queue_exists(
    own: tuple[str, str], replaced: Callable[..., None], brief_table: Table
) -> None:
    """P-23: a put or get that waits with its role leaves the re-created queue alone."""
    table = brief_table
    mine, other = table.pair()
    mine.create(1)
    other.put_nowait(b"1")
    putting = spawn(mine.put, b"stray")
    table.until_held("producer", mine)
    replaced(table, 5)
    after = table.whole()
    assert end_of(putting) in ("missing", "closed")
    assert table.whole() == after
    assert not table.raw.exists(table.keys("producer"))
    getting = spawn(mine.get)
    table.until_held("consumer", mine)
    replaced(table, 3, b"of the next life")
    after = table.whole()
    assert end_of(getting) in ("missing", "closed")
    assert table.whole() == after
    assert not table.raw.exists(table.keys("consumer"))


@REPLACEMENTS
def test_a_wait_for_a_role_longer_than_its_queue_exists(
    own: tuple[str, str], replaced: Callable[..., None], one_server: Backend
) -> None:
    """P-23: an operation that only waits for a role leaves the re-created queue alone too."""
    table = Table(one_server, own)
    mine, _ = table.pair()
    mine.create(1)
    for role in ROLES:
        table.raw.set(table.keys(role), "unknown")
        table.raw.rpop(table.keys(f"{role}_free"))
    waiting = [
        table.spawn(mine.put, b"stray"),
        table.spawn(table.party(own[0]).get),
        table.spawn(table.party(own[0]).close),
    ]
    wait_for(lambda: table.blocked() == len(waiting))
    replaced(table, 5, b"of the next life")
    after = table.whole()
    assert [end_of(one) for one in waiting] == ["missing"] * 3
    assert table.whole() == after
    assert not table.raw.exists(*map(table.keys, ROLES))
    table.close()


# -- P-25: create during delete ------------------------------------------------------------------


def test_create_between_the_steps_of_a_delete(own: tuple[str, str], brief_table: Table) -> None:
    """P-25: it is refused and changes nothing; after the delete the name can be used."""
    table = brief_table
    mine, other = table.pair()
    for command, suffix in DELETE_STEPS:
        mine.create(1)
        mine.put_nowait(b"1")
        deleting = other.walk("delete").before(command, suffix)
        before = dump(table.raw)
        assert kind_of(mine.create, 5) == "exists"
        assert dump(table.raw) == before
        spawn(deleting.finish).result()
        mine.create(5)
        assert table.tokens() == (1, 1, 1)
        mine.delete()
        assert not table.raw.dbsize()


def test_create_while_our_delete_waits(own: tuple[str, str], brief_table: Table) -> None:
    """P-25: our delete waits for a party during its get; create is refused meanwhile."""
    table = brief_table
    mine, other = table.pair()
    mine.create(2)
    mine.put_nowait(b"1")
    getting = other.walk("get").before("INCR", "stats:consumed_messages")
    deleting = table.spawn(mine.delete)
    wait_for(lambda: not table.raw.exists(table.keys("bound")))
    creator = table.party(own[0])
    assert kind_of(creator.create, 5) == "exists"
    assert not deleting.is_done
    assert getting.finish() == b"1"
    deleting.result(SOON)
    assert not table.raw.dbsize()
    creator.create(5)
    table.check_at_rest()


# -- P-26: a holder that died --------------------------------------------------------------------

DEATHS = {
    "producer": [
        ("put", "SET", "producer"),
        ("put", "LPUSH", ""),
        ("put", "LPUSH", "producer_free"),
        ("close", "LPUSH", "closed"),
    ],
    "consumer": [
        ("get", "SET", "consumer"),
        ("get", "LPUSH", "not_full"),
        ("get", "LPUSH", "consumer_free"),
    ],
}
"""The step before which a foreign client dies, by the role that it holds."""


@pytest.mark.parametrize("role", ROLES)
def test_the_role_of_a_dead_party(role: str, own: tuple[str, str], brief_table: Table) -> None:
    """P-26: it is not stolen: timed calls time out. When freed by hand it works for all.

    Freeing a free role is harmless.
    """
    table = brief_table
    mine, other = table.pair()
    for operation, command, suffix in DEATHS[role]:
        mine.create(3)
        mine.put_nowait(b"1")
        args = (b"2",) if operation == "put" else ()
        other.walk(operation, *args).before(command, suffix)
        before = dump(table.raw)
        if role == "producer":
            calls = [lambda: mine.put(b"x", MOMENT), lambda: mine.put_nowait(b"x")]
            calls += [lambda: mine.close(MOMENT)]
        else:
            calls = [lambda: mine.get(MOMENT), mine.get_nowait]
        refused = "closed" if mine.closed() else "in_use"
        assert [kind_of(call) for call in calls] == [refused] * len(calls)
        assert dump(table.raw) == before
        assert mine.free_role(role) is True
        assert table.tokens()[:2] == (1, 1)
        after = dump(table.raw)
        assert [mine.free_role(each) for each in ROLES] == [False, False]
        assert dump(table.raw) == after
        if not mine.closed():
            mine.put(b"3", 5)
            other.put_nowait(b"4") if mine.length() < 3 else None
        while mine.length():
            assert mine.get(5) in (b"1", b"2", b"3", b"4")
        table.check_at_rest()
        mine.delete()
        assert not table.raw.dbsize()


def test_an_interrupted_create(own: tuple[str, str], table: Table) -> None:
    """P-26: a foreign client dies between the steps of its create; freeing roles completes it."""
    mine, other = table.pair()
    for suffix in ("producer_free", "consumer_free", "not_full"):
        other.walk("create", 2).before("LPUSH", suffix)
        for role in ROLES:
            mine.free_role(role)
        mine.put_nowait(b"1")
        assert other.get_nowait() == b"1"
        table.check_at_rest()
        mine.delete()
        assert not table.raw.dbsize()


@pytest.mark.parametrize("waits", ["async", "foreign"])
def test_a_freed_role_wakes_a_waiting_party(
    own: tuple[str, str], waits: str, brief_table: Table
) -> None:
    """P-26: a call without a limit waits for the role of a dead party, until that is freed."""
    table = brief_table
    mine, other = table.pair()
    mine.create(0)
    other.walk("put", b"lost").before("LPUSH", "")
    waiting = table.spawn(table.party(waits).put, b"1")
    assert not waiting.is_done
    assert mine.free_role("producer")
    waiting.result(SOON)
    assert table.messages() == [b"1"]
    table.check_at_rest()


# -- P-27: many processes -----------------------------------------------------------------------

CREWS = {
    "ours": (("sync", "async", "sync", "async"), ("async", "sync")),
    "both": (("sync", "foreign", "async", "foreign"), ("foreign", "async")),
    "foreign-consumers": (("sync", "async", "sync", "async"), ("foreign", "foreign")),
}
EACH = 40
"""Messages of each producer."""


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    """The process that starts members."""
    with Crowd() as made:
        yield made


@pytest.mark.parametrize("crew", CREWS)
def test_four_producers_and_two_consumers(
    crew: str, one_server: Backend, crowd: Crowd, tmp_path: Path
) -> None:
    """P-27: processes of both kinds with a bound of 4: no message is lost, doubled or reordered.

    Our puts never exceed it. A foreign consumer may report room too late (P-7), and a foreign
    producer that believes it exceeds it by one.
    """
    table = Table(one_server)
    log = tmp_path / "log"
    log.touch()
    mine = table.party("sync")
    mine.create(4)
    common = {"url": one_server.url, "name": "q", "log": str(log)}
    givers, takers = CREWS[crew]
    putting = [
        crowd.start("move", kind=kind, client_id=f"p{n}", count=EACH, **common)
        for n, kind in enumerate(givers)
    ]
    getting = [
        crowd.start("move", kind=kind, client_id=f"c{n}", count=0, **common)
        for n, kind in enumerate(takers)
    ]
    longest = 0
    while any(member.exit_code is None for member in putting):
        longest = max(longest, mine.length())
    assert [member.ended() for member in putting] == [0] * 4
    mine.close()
    assert [member.ended() for member in getting] == [0] * 2
    believes = "foreign" in givers and "foreign" in takers
    assert longest <= 4 + believes
    told = Told().read(log)
    expected = {f"p{n}.{serial}." for n in range(4) for serial in range(EACH)}
    assert Counter(told.all_got()) == Counter(expected)
    for messages in told.got.values():
        assert all(found == sorted(found) for found in numbers_of(messages).values())
    size = sum(map(len, expected))
    assert table.counters() == (4 * EACH, size, 4 * EACH, size)
    table.check_at_rest()
    table.close()


# -- P-28: names --------------------------------------------------------------------------------

PLACES = [
    (name, prefix)
    for prefix in (PREFIX, "p")
    for name in ("q", "q ", "{q}", "q*", "q:r", "\N{SNOWMAN} \xfc", "'\"\\")
]


def test_names_do_not_interfere(pair: tuple[str, str], brief_table: Table) -> None:
    """P-28: queues with different names or prefixes share nothing."""
    table = brief_table
    kinds = itertools.cycle(pair)
    parties = [
        (
            table.party(next(kinds), name, prefix=prefix),
            table.party(next(kinds), name, prefix=prefix),
        )
        for name, prefix in PLACES[::2]
    ]
    for number, (first, second) in enumerate(parties):
        first.create(number + 1)
        for _ in range(number + 1):
            second.put_nowait(b"%d" % number)
        assert kind_of(first.put_nowait, b"x") == "full"
    assert [first.length() for first, _ in parties] == list(range(1, len(parties) + 1))
    for number, (first, second) in enumerate(parties):
        assert second.get_nowait() == b"%d" % number
        second.close()
        first.delete()
        assert [one.closed() for one, _ in parties[number + 1 :]] == [False] * (
            len(parties) - number - 1
        )
    assert not table.raw.dbsize()
