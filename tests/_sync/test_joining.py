# From tests/_async/test_joining.py by tools/unasync.py; do not edit.
"""A client of one source: it uses one node, or all nodes that this one lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Any

import pytest
import redis

from penstock import (
    BadArgument,
    ConfigurationError,
    NodesUnavailable,
    Outcome,
    Penstock,
    WrongNode,
    parse_id,
)
from penstock.client._sync import topology
from penstock.client._sync.nodes import federation
from penstock.embedded import EmbeddedServer
from tests.connection.stub import Stub
from tests.support.twins import PATIENCE, spawn, wait_for

Urls = list[str]


@pytest.fixture
def urls() -> Iterator[Urls]:
    """Three nodes: databases of one server."""
    with EmbeddedServer(tcp=True) as server:
        base = server.url.removesuffix("/0")
        yield [f"{base}/{number}" for number in range(3)]


@pytest.fixture
def listed(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> Urls:
    """Three databases of one server, each of which lists all three.

    A client waits for all of them, however busy the machine is.
    """
    monkeypatch.setattr(federation, "BRIEF_SECONDS", PATIENCE)
    monkeypatch.setattr(federation, "OTHER_NODES_SECONDS", PATIENCE)
    with Penstock(urls[0]) as ps:
        for url in urls[1:]:
            ps.nodes.add(url)
    return urls


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients read the list of nodes before each call and each wait."""
    monkeypatch.setattr(topology, "NODE_LIST_MAX_AGE", 0.05)
    monkeypatch.setattr(federation, "NODE_LIST_MAX_AGE", 0.05)


class Gate:
    """A call that waits until the gate opens."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._signal = Event()
        self.is_reached = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Wait, then make the call."""
        self.is_reached = True
        self._signal.wait()
        return self._call(*args, **options)

    def open(self) -> None:
        """Let the call go on."""
        self._signal.set()


def alone(url: str) -> Penstock:
    """Return a client that uses only this node."""
    return Penstock(url, federation=False)


def ids_of(ps: Penstock) -> list[str]:
    """Return the id prefixes of the client's nodes."""
    return [node.id[:8] for node in ps.hello().nodes]


def id_of(url: str) -> str:
    """Return the id prefix of this node."""
    with alone(url) as ps:
        return ids_of(ps)[0]


def one_on(url: str, body: Any = "x") -> str:
    """Add a job on this node, and return its id."""
    with alone(url) as ps:
        return ps.queue("q").enqueue(body).id


def leave(url: str) -> None:
    """Mark this node as leaving through another client, so that it takes no more jobs."""
    with Penstock(url) as ps:
        ps.nodes.leave(id_of(url))


def test_one_url_is_enough(listed: Urls) -> None:
    """With one URL a client sees all nodes, and finds, reserves and finishes their jobs by id."""
    added = [one_on(url) for url in listed]
    for url in listed:
        with Penstock(url) as ps:
            assert len(ids_of(ps)) == 3
            assert ps.queue("q").stats().ready == 3
            assert {view.id for view in ps.queue("q").jobs()} == set(added)
            assert ps.queues() == ["q"]
    ps = Penstock(listed[1])
    assert list(ps.queue("q").ack(added)) == [Outcome.DONE] * 3
    ps.close()


def test_a_node_that_joins_gets_the_settings(urls: Urls) -> None:
    """A joining node gets all settings and pauses of all queues before any client uses it."""
    with Penstock(urls[0]) as ps:
        ps.queue("q").configure(lease=7, max_length=3)
        ps.queue("q").pause("out")
        ps.queue("parts", partitions=2).configure(lease=8)
        ps.queue("plain").enqueue("x")
        ps.nodes.add(urls[1])
    with alone(urls[1]) as ps:
        found = ps.queue("q").stats().settings
        assert (found.lease, found.max_length, found.paused) == (7, 3, "out")
        assert ps.queue("parts", partitions=2).stats().settings.lease == 8
        assert not ps.queue("plain").stats().exists


@pytest.mark.parametrize("first", ["show", "reserve", "stats", "enqueue", "open", "hello"])
def test_the_first_call_joins(listed: Urls, first: str) -> None:
    """Any first call joins the nodes, also on an object made before anything was sent."""
    foreign = one_on(listed[2])
    ps = Penstock(listed[0])
    q = ps.queue("q")
    calls = {
        "show": lambda: q.show(foreign), "reserve": lambda: q.reserve(block=0), "stats": q.stats,
        "enqueue": lambda: q.enqueue("y"), "open": lambda: ps.open("q"), "hello": ps.hello,
    }  # fmt: skip
    assert calls[first]()
    assert q.show(foreign).id == foreign  # type: ignore[union-attr]  # it exists
    ps.close()


def test_no_jobs_are_added_to_a_leaving_node(listed: Urls) -> None:
    """A leaving node gets no more jobs, even from a client that has only its URL."""
    leave(listed[0])
    with Penstock(listed[0]) as ps:
        own = parse_id(one_on(listed[1])).node
        assert {ps.hello().nodes[0].leaving, len(ids_of(ps))} == {True, 3}
        jobs = [ps.queue("q").enqueue("x"), *ps.queue("q").enqueue_many(["y", "z"])]
        assert own in ids_of(ps)
        left = id_of(listed[0])
        assert left not in {parse_id(one.id).node for one in jobs}
        assert ps.nodes.check_drained(left)


def test_alone_on_request(listed: Urls) -> None:
    """With `federation=False` a client sees one node and obeys its flag; other ids are foreign."""
    foreign = one_on(listed[1])
    with alone(listed[0]) as ps:
        q = ps.queue("q")
        mine = q.enqueue("x")
        leave(listed[0])
        [view] = ps.hello().nodes
        assert (view.leaving, view.priority) == (True, 100)
        for call in (lambda: q.enqueue("y"), lambda: q.enqueue_many(["y"])):
            while not _refused(call):
                pass  # the client may use its cached list for a moment
        assert list(q.ack([mine.id])) == [Outcome.DONE]
        with pytest.raises(WrongNode):
            q.ack([foreign])
        with pytest.raises(ConfigurationError, match="federation"):
            assert ps.nodes
    with pytest.raises(BadArgument, match="federation"):
        Penstock(listed, federation=False)
    with pytest.raises(BadArgument, match="federation"):
        Penstock(listed[0], federation="no")  # type: ignore[arg-type]  # on purpose


def test_the_first_call_of_a_client_for_one_node(listed: Urls) -> None:
    """Jobs that its first call takes have ids that every call accepts."""
    own = one_on(listed[0])
    with alone(listed[0]) as ps:
        [job] = ps.queue("q").reserve()
        assert job.id == own
        assert list(ps.queue("q").ack([job.id])) == [Outcome.DONE]


def _refused(call: Any) -> bool:
    try:
        call()
    except NodesUnavailable as error:
        return "leaving" in str(error)
    return False


def test_a_node_that_leaves_and_lists_no_other(urls: Urls) -> None:
    """Without another node the producer is told that its only node is leaving."""
    with Penstock(urls[0]) as ps, Penstock(urls[0]) as steering:
        steering.nodes.leave(ids_of(steering)[0])
        with pytest.raises(NodesUnavailable, match="leaving"):
            ps.queue("q").enqueue("x")
        steering.nodes.join(ids_of(steering)[0])
        assert ps.queue("q").enqueue("x").state == "ready"


@pytest.mark.usefixtures("hasty")
def test_a_client_that_runs_joins(urls: Urls) -> None:
    """A running client joins: it finishes its jobs, and a running wait covers the new nodes."""
    with Penstock(urls[0]) as ps:
        q = ps.queue("q")
        q.enqueue_many(["a", "b"])
        first, second = q.reserve(2)
        assert len(ids_of(ps)) == 1
        waiting = spawn(q.reserve, 1, block=None)
        with Penstock(urls[0]) as other:
            other.nodes.add(urls[1])
        added = one_on(urls[1])
        [job] = waiting.result()
        assert job.id == added
        assert job.queue is q
        assert first.extend(30) > 0
        assert list(q.ack([job, first, second.id])) == [Outcome.DONE] * 3
        assert len(ids_of(ps)) == 2


def test_calls_under_way_stay_on_their_route(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are held while the client joins end on the old route; later ones take the new."""
    with Penstock(urls[0]) as ps:
        q = ps.queue("q")
        q.enqueue_many(["a", "b"])
        [first, second], old = q.reserve(2), q.route
        calls = {
            "add": lambda: q.enqueue("c"),
            "ack_one": first.ack,
            "settle": lambda: q.ack([second]),
            "read_stats": q.stats,
        }
        gates = {name: Gate(getattr(old, name)) for name in calls}
        for name, gate in gates.items():
            monkeypatch.setattr(old, name, gate)
        under_way = [spawn(call) for call in calls.values()]
        for gate in gates.values():
            wait_for(lambda gate=gate: gate.is_reached)  # type: ignore[misc]  # a default binds it
        ps.nodes.list()
        assert q.route is not old
        later = q.enqueue("d")
        assert not any(call.is_done for call in under_way)
        for gate in gates.values():
            gate.open()
        added, is_acked, outcomes, _ = [call.result() for call in under_way]
        assert (is_acked, list(outcomes)) == (True, [Outcome.DONE])
        assert {job.id for job in q.reserve(2, block=0)} == {added.id, later.id}
        assert added.queue is first.queue is q


@pytest.mark.usefixtures("hasty")
def test_a_loop_that_consumes_joins(urls: Urls) -> None:
    """A loop that consumes joins between two jobs, and while it waits."""
    with Penstock(urls[0]) as ps:
        q = ps.queue("q")
        q.enqueue("here")
        seen = []
        jobs = q.consume()
        for job in jobs:
            with job:
                seen.append(job.body)
            if len(seen) == 2:
                jobs.close()  # type: ignore[attr-defined]  # a generator
                break
            ps.nodes.list()
            with Penstock(urls[0]) as other:
                other.nodes.add(urls[1])
            one_on(urls[1], "there")
        assert seen == ["here", "there"]


@pytest.mark.usefixtures("hasty")
def test_a_producer_waiting_for_room_uses_another_node(urls: Urls) -> None:
    """A producer waits for room; its node starts to leave, so the job is added to another one."""
    with Penstock(urls[0]) as ps:
        q = ps.queue("q")
        q.configure(max_length=1)
        first = q.enqueue("x")
        waiting = spawn(q.enqueue, "y", block=20)
        with Penstock(urls[0]) as other:
            other.nodes.add(urls[1])
        leave(urls[0])
        added = waiting.result()
        assert parse_id(added.id).node != parse_id(first.id).node


def test_partitions_are_on_all_nodes(listed: Urls) -> None:
    """A partitioned queue joins as well."""
    leave(listed[0])
    left = id_of(listed[0])
    with Penstock(listed[0]) as ps:
        q = ps.queue("parts", partitions=2)
        added = q.enqueue_many([{"n": n} for n in range(9)], key=lambda body: str(body["n"]))
        assert left not in {parse_id(one.id).node for one in added}
        assert len(q.reserve(9, block=5)) >= 1


def test_a_role_is_held_on_one_node(listed: Urls, urls: Urls) -> None:
    """A client of several nodes refuses roles; one that uses a single node may take them."""
    with Penstock(listed[0]) as ps:
        with pytest.raises(ConfigurationError, match="role"):
            ps.queue("q").exclusive("consumer").take()
        with pytest.raises(ConfigurationError, match="role"):
            ps.queue("q").exclusive("consumer")
    with alone(urls[0]) as ps, ps.queue("q").exclusive("consumer") as role:
        assert role.fence


def test_without_permission_to_read_the_list(listed: Urls) -> None:
    """Without permission to read the list the client uses only the given node."""
    with redis.Redis.from_url(listed[0]) as raw:
        raw.acl_setuser(
            "plain", enabled=True, passwords=["+pw"], commands=["+@all"],
            keys=["penstock:{*", "penstock:node", "penstock:queues"],
        )  # fmt: skip
    with Penstock(listed[0].replace("://", "://plain:pw@")) as ps:
        ps.queue("q").enqueue("x")
        assert len(ids_of(ps)) == 1


class Thief(Stub):
    """A foreign server that accepts connections and records their commands."""

    def __init__(self) -> None:
        super().__init__(lambda _: b"-ERR no\r\n")

    @property
    def secrets(self) -> list[bytes]:
        """Return the received commands that carry a password."""
        return [one[-1] for one in self.commands if one[0] == b"AUTH"]


@pytest.mark.parametrize("many", [False, True], ids=["one URL", "a list"])
def test_a_password_is_not_sent_to_listed_foreign_hosts(many: bool) -> None:
    """A listed node on a foreign host is not contacted with our password; `info` has the reason."""
    with Thief() as thief, EmbeddedServer(tcp=True) as server:
        url = server.url.replace("://", "://:hunter2@")
        with redis.Redis.from_url(server.url) as raw:
            raw.config_set("requirepass", "hunter2")
        foreign = thief.url.replace("127.0.0.1", "localhost")
        with redis.Redis.from_url(url) as raw:
            raw.hset("penstock:nodes", "e" * 40, f"1 {foreign}")
            raw.hset("penstock:nodes", "f" * 40, f"1 {foreign}?password=x")
        source = [url] if many else url
        with Penstock(source) as ps:
            ps.queue("q").enqueue("x")
            assert ps.queue("q").reserve()
            own, *others = ps.hello().nodes
            assert (own.error, own.leaving) == ("", False)
            assert {node.id[:1] for node in others} == {"e", "f"}
            told = {node.id[:1]: node.error for node in others}
            assert "localhost is not among its node_hosts" in told["e"]
            assert "and nothing else" in told["f"]
            assert not any("hunter2" in node.address + node.error for node in others)
            mine = ps.queue("q").enqueue("y")
            with pytest.raises(WrongNode, match="node_hosts"):
                ps.queue("q").ack([f"D-eeeeeeee{mine.id[10:]}"])
            ps.nodes.forget("eeeeeeee")
            assert {node.id[:1] for node in ps.hello().nodes} == {own.id[:1], "f"}
            assert thief.connections == 0
            ps.nodes.forget("f" * 40)
        with redis.Redis.from_url(url) as raw:
            raw.hset("penstock:nodes", "e" * 40, f"9999999999999 {foreign}")
        with Penstock(source, node_hosts=["localhost"], retry_for=0.1) as ps:
            with suppress(NodesUnavailable):
                ps.hello()
            wait_for(lambda: b"hunter2" in thief.secrets)


def test_without_a_password_foreign_hosts_are_used(listed: Urls) -> None:
    """Without a password listed nodes are used whatever their host."""
    with Penstock(listed[0].replace("127.0.0.1", "localhost")) as ps:
        assert [node.error for node in ps.hello().nodes] == [""] * 3
