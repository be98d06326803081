"""Finding a primary, and its successor, through Sentinel.

The servers are real; the answers of the Sentinels are chosen by the test. tests/nodes has real
Sentinels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import (
    AsyncPenstock,
    BadArgument,
    ConfigurationError,
    Durable,
    NotReplicated,
    Penstock,
)
from penstock.client._async.transport import sentinel as async_sentinel
from penstock.client._sync.transport import sentinel as sync_sentinel
from penstock.client._sync.transport.settings import connection_factory
from penstock.embedded import EmbeddedServer
from tests.connection.sentinels import Demoted, FakeSentinel, sentinel_url
from tests.connection.stub import Command, bulk
from tests.support.twins import await_for, spawn, wait_for

Server = Callable[..., EmbeddedServer]


@pytest.fixture
def server(make_server: Server) -> EmbeddedServer:
    """A server that is or becomes the primary."""
    return make_server(tcp=True)


@pytest.fixture
def sentinel(server: EmbeddedServer) -> Iterator[FakeSentinel]:
    """A Sentinel that names it."""
    with FakeSentinel(server.port) as made:
        yield made


@contextmanager
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A plain client of a server."""
    with redis.Redis.from_url(server.url) as client:
        yield client


def bodies(server: EmbeddedServer) -> list[Any]:
    """Return the bodies of the jobs on a server."""
    with Penstock(server.url) as ps:
        return [view.body for view in ps.queue("q").peek(100)]


# -- URLs ----------------------------------------------------------------------------------------


def settings(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a connection to the primary, and of one to the first Sentinel."""
    primary = connection_factory(url)[0]()
    ours, theirs = vars(primary), vars(primary.connection_pool._sentinels[0][1]())
    return ours, theirs


@pytest.mark.parametrize("source", ["redis://[::1]:7", redis.Redis(host="::1", port=7)])
def test_the_address_of_a_server(source: Any) -> None:
    """Texts name it as a URL does, an IPv6 address in brackets."""
    assert connection_factory(source)[1] == "[::1]:7"


@pytest.mark.parametrize(
    "rest, address",
    [
        ("h:1/jobs", "jobs@h:1"),
        ("h/jobs", "jobs@h:26379"),
        ("h1:1,h2,10.0.0.3:3/jobs/5", "jobs@h1:1,h2:26379,10.0.0.3:3"),
        ("[::1]:7,[fe80::2]/jobs", "jobs@[::1]:7,[fe80::2]:26379"),
        ("user:pa%40ss@h/a%2Fb%20c/0?socket_timeout=3", "a/b c@h:26379"),
        ("h/jobs/", "jobs@h:26379"),
    ],
)
def test_urls(rest: str, address: str) -> None:
    """A URL has Sentinels with or without a port, the service, the database and options."""
    for scheme in ("redis+sentinel", "REDISS+Sentinel"):
        assert connection_factory(f"{scheme}://{rest}")[1] == address


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://h:1",
        "redis+sentinel://h:1/",
        "redis+sentinel:///jobs",
        "redis+sentinel://h:1,/jobs",
        "redis+sentinel://h:x/jobs",
        "redis+sentinel://h:0/jobs",
        "redis+sentinel://h:70000/jobs",
        "redis+sentinel://h:1;h:2/jobs",
        "redis+sentinel://h/jobs/one",
        "redis+sentinel://h/jobs/1/2",
        "redis+sentinel://h/jobs?no_such_option=1",
        "redis+sentinel://h/jobs?socket_timeout=soon",
        "redis+sentinel://h/jobs?sentinel_no_such_option=1",
        "redis+sentinel://:secret@h:x/jobs?sentinel_password=secret",
        "redis-sentinel://h/jobs",
    ],
)
def test_invalid_sentinel_urls(url: str) -> None:
    """An invalid URL raises a typed error before anything is sent; no password is in it."""
    for make in (Penstock, AsyncPenstock):
        with pytest.raises(BadArgument) as caught:
            make(url)
        assert "secret" not in str(caught.value)


def test_the_options_of_a_url() -> None:
    """User, password and database are for the primary; `sentinel_...` options are
    for the Sentinels.
    """
    url = "redis+sentinel://ada:one@h/jobs/3?socket_timeout=7&sentinel_password=two"
    ours, theirs = settings(url)
    assert (ours["username"], ours["password"], ours["db"]) == ("ada", "one", 3)
    assert (ours["_socket_timeout"], ours["_socket_connect_timeout"]) == (7, 1)
    assert (theirs["username"], theirs["password"], theirs["db"]) == (None, "two", 0)
    assert (theirs["_socket_timeout"], theirs["_socket_connect_timeout"]) == (1, 1)


def test_tls_is_for_both() -> None:
    """`rediss+sentinel` uses TLS for the primary and the Sentinels."""
    ours, theirs = settings("rediss+sentinel://h/jobs?ssl_ca_certs=/ca&sentinel_ssl_cert_reqs=none")
    assert (ours["ca_certs"], theirs["ca_certs"]) == ("/ca", "/ca")
    assert ours["cert_reqs"] != theirs["cert_reqs"]


def test_a_client_of_redis_py_lends_its_settings(
    server: EmbeddedServer, sentinel: FakeSentinel
) -> None:
    """Database and Sentinels of a client from `master_for` are used."""
    host, port = sentinel.place.split(":")
    made = redis.sentinel.Sentinel([(host, int(port))], socket_timeout=3)
    with made.master_for("jobs", db=5) as lent, Penstock(lent) as ps:
        ps.queue("q").enqueue(1)
        assert ps.hello().nodes[0].address == f"jobs@{sentinel.place}"
        assert [job.body for job in ps.queue("q").reserve(5, block=0)] == [1]
    with redis.Redis.from_url(server.url.replace("/0", "/5")) as client:
        assert client.exists("penstock:{q}:meta")


async def test_an_asyncio_client_of_redis_py_lends_its_settings(
    server: EmbeddedServer, sentinel: FakeSentinel
) -> None:
    """Settings of an asyncio client from `master_for` are used."""
    host, port = sentinel.place.split(":")
    made = redis.asyncio.sentinel.Sentinel([(host, int(port))])
    async with made.master_for("jobs", db=5) as lent, AsyncPenstock(lent) as ps:
        await ps.queue("q").enqueue(1)
        assert [job.body for job in await ps.queue("q").reserve(5, block=0)] == [1]
    with redis.Redis.from_url(server.url.replace("/0", "/5")) as client:
        assert client.exists("penstock:{q}:meta")


def test_unusable_clients(sentinel: FakeSentinel) -> None:
    """A client of replicas, one that decodes, or one of the other kind is refused."""
    host, port = sentinel.place.split(":")
    made = redis.sentinel.Sentinel([(host, int(port))])
    for lent in (made.slave_for("jobs"), redis.asyncio.sentinel.Sentinel([]).master_for("jobs")):
        with pytest.raises(BadArgument):
            Penstock(lent)
    with pytest.raises(ConfigurationError, match="decode_responses"):
        Penstock(made.master_for("jobs", decode_responses=True))


# -- finding it --------------------------------------------------------------------------------


def test_the_next_sentinel_is_asked(server: EmbeddedServer) -> None:
    """A Sentinel is skipped if it is down, does not know the service, lacks peers or refuses."""
    with (
        FakeSentinel(server.port) as gone,
        FakeSentinel(None) as ignorant,
        Demoted({b"SENTINEL": b"-NOAUTH Authentication required.\r\n"}) as closed,
        FakeSentinel(server.port, epoch=3) as good,
    ):
        gone._listener.close()
        places = ",".join([gone.place, ignorant.place, f"127.0.0.1:{closed.port}", good.place])
        with Penstock(f"redis+sentinel://{places}/jobs") as ps:
            ps.queue("q").enqueue(1)
        assert (ignorant.asked, good.asked) == (1, 1)
        assert len(closed.refused) == 2
    assert bodies(server) == [1]


def test_a_sentinel_that_is_alone_is_not_believed(
    server: EmbeddedServer, make_server: Server
) -> None:
    """redis-py's minimum of other Sentinels is respected."""
    other = make_server(tcp=True)
    with FakeSentinel(other.port, peers=0) as alone, FakeSentinel(server.port) as good:
        places = [("127.0.0.1", int(one.place.split(":")[1])) for one in (alone, good)]
        made = redis.sentinel.Sentinel(places, min_other_sentinels=1)
        with made.master_for("jobs") as lent, Penstock(lent) as ps:
            assert ps.queue("q").enqueue(1)
        assert (alone.asked, good.asked) == (1, 1)
    assert bodies(server) == [1]


def test_no_sentinel_is_there() -> None:
    """Retries last for `retry_for`; then the error has each Sentinel's answer."""
    with FakeSentinel(None) as ignorant, FakeSentinel(1) as gone:
        gone._listener.close()
        url = sentinel_url(ignorant, gone)
        start = time.monotonic()
        with pytest.raises(RedisConnectionError) as caught:
            Penstock(url, retry_for=0.3).queue("q").enqueue(1)
        assert 0.3 <= time.monotonic() - start < 10
        assert isinstance(caught.value, redis.sentinel.MasterNotFoundError)
        for text in ("'jobs'", f"{ignorant.place}: it does not know", f"{gone.place}: Error"):
            assert text in str(caught.value)
        assert ignorant.asked > 1

        async def run() -> None:
            await AsyncPenstock(url, retry_for=0.3).queue("q").enqueue(1)

        with pytest.raises(redis.asyncio.sentinel.MasterNotFoundError):
            asyncio.run(run())


def test_a_sentinel_names_a_replica(
    server: EmbeddedServer, make_server: Server, sentinel: FakeSentinel
) -> None:
    """A Sentinel names a replica: only its role is asked, and then another Sentinel."""
    replica = make_server(tcp=True)
    with raw(replica) as client, FakeSentinel(replica.port) as late:
        client.replicaof("127.0.0.1", server.port)
        with Penstock(sentinel_url(late, sentinel)) as ps:
            assert ps.queue("q").enqueue(1)
        assert client.info("commandstats").keys().isdisjoint({"cmdstat_evalsha", "cmdstat_hget"})
    assert (late.asked, sentinel.asked) == (1, 1)
    assert bodies(server) == [1]


def test_a_user_that_may_not_ask_for_the_role(
    server: EmbeddedServer, sentinel: FakeSentinel
) -> None:
    """Without permission for ROLE the named server is used."""
    with raw(server) as client:
        client.acl_setuser("ada", enabled=True, nopass=True, keys="*", commands=["+@all", "-role"])
    with Penstock(f"redis+sentinel://ada:x@{sentinel.place}/jobs") as ps:
        assert ps.queue("q").enqueue(1)


# -- refusals ----------------------------------------------------------------------------------

WRAPPED = (
    b"ERR Error running script (call to f_0123): @user_script:52: @user_script: 52:"
    b" -READONLY You can't write against a read only replica."
)
REFUSALS = {
    "READONLY": b"READONLY You can't write against a read only replica.",
    "READONLY-6.2": WRAPPED,
    "MASTERDOWN": b"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.",
    "LOADING": b"LOADING Redis is loading the dataset in memory",
    "BUSY": b"BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
    "MISCONF": b"MISCONF Redis is configured to save RDB snapshots, but it can't.",
    "MISCONF-6.2": WRAPPED.replace(b"READONLY", b"MISCONF"),
    "TRYAGAIN": b"TRYAGAIN Multiple keys request during rehashing of slot",
    "NOREPLICAS": b"NOREPLICAS Not enough good replicas to write.",
    "lost": b"",
}


def error(text: bytes) -> bytes:
    """Return an error reply; an empty text closes the connection instead."""
    return b"-%b\r\n" % text if text else b""


def call_of(command: Command) -> tuple[bytes, bytes]:
    """Return number and producer of an enqueue."""
    count = int(command[2])
    return command[3 + count], command[4 + count]


@pytest.mark.parametrize("text", REFUSALS.values(), ids=REFUSALS)
def test_an_enqueue_that_is_refused_goes_to_the_next_primary(
    server: EmbeddedServer, text: bytes
) -> None:
    """A refused enqueue is repeated with its number on the primary that Sentinels name then."""
    with FakeSentinel(1) as sentinel:

        def moved(command: Command) -> None:
            if len(old.refused) == 2:
                sentinel.moves(server.port)

        with Demoted({b"EVALSHA": error(text)}, moved) as old, Penstock(server.url) as there:
            there.queue("q").configure(lease=7)
            sentinel.port = old.port
            with Penstock(sentinel_url(sentinel)) as ps:
                ps.queue("q").enqueue(1)
                ps.queue("q").enqueue(2)
            assert old.connections == 2
            assert len({call_of(command) for command in old.refused}) == 1
            with raw(server) as client:
                assert client.hexists("penstock:{q}:meta", b"@" + call_of(old.refused[0])[1])
    assert bodies(server) == [1, 2]


@pytest.mark.parametrize("text", REFUSALS.values(), ids=REFUSALS)
async def test_an_enqueue_of_asyncio_that_is_refused_goes_to_the_next_primary(
    server: EmbeddedServer, text: bytes
) -> None:
    """A refused enqueue of asyncio is repeated with its number on the primary that
    Sentinels name.
    """
    with (
        FakeSentinel(1) as sentinel,
        Demoted({b"EVALSHA": error(text)}, lambda _: sentinel.moves(server.port)) as old,
    ):
        sentinel.port = old.port
        async with AsyncPenstock(sentinel_url(sentinel)) as ps:
            await ps.queue("q").enqueue(1)
        assert old.connections == 1
    assert bodies(server) == [1]


def test_a_refusal_that_does_not_pass() -> None:
    """A lasting refusal is raised unchanged after `retry_for`, also without Sentinels."""
    with Demoted({b"EVALSHA": error(REFUSALS["READONLY"])}) as old, FakeSentinel(old.port) as one:
        for url in (old.url, sentinel_url(one)):
            with Penstock(url, retry_for=0.2) as ps:
                before = len(old.refused)
                with pytest.raises(
                    (redis.ReadOnlyError, RedisConnectionError), match=r"replica|slave"
                ):
                    ps.queue("q").enqueue(1)
                assert len(old.refused) > before + 1


def test_a_wait_for_replicas_that_a_demotion_ends(
    server: EmbeddedServer, sentinel: FakeSentinel
) -> None:
    """A demotion during WAIT loses the reply: the call is repeated and then judged."""
    with Penstock(server.url) as ps:
        ps.queue("q").configure(lease=7)
    first = bulk(b"1700000000000-1000000000")
    added = b"%b:1\r\n%b:0\r\n:0\r\n:0\r\n:0\r\n" % (first, bulk(b"01020304"))
    says = {
        b"EVALSHA": b"*9\r\n:1\r\n%b%b" % (bulk(b"1"), added),
        b"WAIT": b"-UNBLOCKED force unblock from blocking operation, instance state changed"
        b" (master -> replica?)\r\n",
    }
    with Demoted(says, lambda _: sentinel.moves(server.port)) as old:
        sentinel.port = old.port
        with Penstock(sentinel_url(sentinel)) as ps, pytest.raises(NotReplicated) as caught:
            ps.queue("q").enqueue(1, durable=Durable(1, timeout=0.1))
        assert [command[0] for command in old.refused] == [b"EVALSHA", b"WAIT"]
    assert (caught.value.got, caught.value.withdrawn) == (0, True)
    with Penstock(server.url) as ps:
        assert ps.queue("q").stats().withdrawn == 1


# -- consumers ---------------------------------------------------------------------------------


@contextmanager
def waiting(url: str, server: EmbeddedServer) -> Iterator[Any]:
    """Run a consumer that blocks on a server through this URL."""
    with Penstock(url) as ps, raw(server) as client:
        idle = spawn(ps.queue("q").reserve, 1, block=30)
        wait_for(lambda: client.info("clients")["blocked_clients"] == 1)
        yield idle


@asynccontextmanager
async def awaiting(url: str, server: EmbeddedServer) -> AsyncIterator[asyncio.Future[Any]]:
    """Run an asyncio consumer that blocks on a server through this URL."""
    async with AsyncPenstock(url) as ps:
        idle = asyncio.ensure_future(ps.queue("q").reserve(1, block=30))
        with raw(server) as client:
            await await_for(lambda: client.info("clients")["blocked_clients"] == 1)
        yield idle


def demote(old: EmbeddedServer, new: EmbeddedServer, sentinel: FakeSentinel) -> None:
    """Make a server a replica of another one, keeping its connections."""
    with raw(new) as client:
        client.replicaof("NO", "ONE")
    with raw(old) as client:
        client.replicaof("127.0.0.1", new.port)
    sentinel.moves(new.port)


def test_a_consumer_that_waits_moves(
    server: EmbeddedServer, make_server: Server, sentinel: FakeSentinel
) -> None:
    """UNBLOCKED ends its BLPOP, and the consumer waits at the new primary."""
    new = make_server(tcp=True)
    with waiting(sentinel_url(sentinel), server) as idle, Penstock(new.url) as ps:
        demote(server, new, sentinel)
        ps.queue("q").enqueue("after")
        start = time.monotonic()
        assert [job.body for job in idle.result()] == ["after"]
        assert time.monotonic() - start < 4
    server.kill()  # otherwise its primary would wait for it at the end


async def test_a_task_that_waits_moves(
    server: EmbeddedServer, make_server: Server, sentinel: FakeSentinel
) -> None:
    """UNBLOCKED ends the BLPOP of a task, which waits at the new primary."""
    new = make_server(tcp=True)
    async with awaiting(sentinel_url(sentinel), server) as idle:
        demote(server, new, sentinel)
        async with AsyncPenstock(new.url) as ps:
            await ps.queue("q").enqueue("after")
        assert [job.body for job in await asyncio.wait_for(idle, 20)] == ["after"]
    server.kill()


# -- an isolated primary ------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask Sentinels at every call, and let consumers look several times a second."""
    for module in (sync_sentinel, async_sentinel):
        monkeypatch.setattr(module, "SENTINEL_LOOK_SECONDS", 0.0)
    monkeypatch.setattr("penstock.core.flows.effects.POLL_INTERVAL", 0.3)


@pytest.mark.usefixtures("eager")
def test_a_primary_that_works_on_is_left(
    server: EmbeddedServer, make_server: Server, sentinel: FakeSentinel
) -> None:
    """A primary that was replaced without knowing still works; clients leave it."""
    new = make_server(tcp=True)
    url = sentinel_url(sentinel, patience=20)
    with waiting(url, server) as idle, Penstock(url) as ps:
        ps.queue("other").enqueue("before")
        sentinel.moves(new.port)
        ps.queue("q").enqueue("after")
        assert [job.body for job in idle.result()] == ["after"]
        with raw(server) as client:
            assert not client.exists("penstock:{q}:meta")
            wait_for(lambda: client.info("clients")["connected_clients"] == 2)  # one is the test's


@pytest.mark.usefixtures("eager")
async def test_a_primary_that_works_on_is_left_by_tasks(
    server: EmbeddedServer, make_server: Server, sentinel: FakeSentinel
) -> None:
    """Tasks leave a replaced primary that still works."""
    new = make_server(tcp=True)
    url = sentinel_url(sentinel, patience=20)
    async with awaiting(url, server) as idle, AsyncPenstock(url) as ps:
        await ps.queue("other").enqueue("before")
        sentinel.moves(new.port)
        await ps.queue("q").enqueue("after")
        assert [job.body for job in await asyncio.wait_for(idle, 20)] == ["after"]


@pytest.mark.usefixtures("eager")
def test_an_outdated_sentinel_is_ignored(server: EmbeddedServer, make_server: Server) -> None:
    """A client ignores a Sentinel with an older epoch than it has seen."""
    old = make_server(tcp=True)
    with FakeSentinel(old.port, epoch=1) as late, FakeSentinel(server.port, epoch=2) as good:
        with Penstock(sentinel_url(good, late, patience=20)) as ps:
            for body in range(4):
                ps.queue("q").enqueue(body)
        assert late.asked > 1
        late.epoch = 3
        with Penstock(sentinel_url(good, late, patience=20)) as ps:
            for body in range(4, 6):
                ps.queue("q").enqueue(body)
    assert bodies(server) == [0, 1, 2, 3]
    assert bodies(old) == [4, 5]


@pytest.mark.usefixtures("eager")
def test_sentinels_may_be_gone_while_the_primary_works(
    server: EmbeddedServer, sentinel: FakeSentinel
) -> None:
    """While the primary works, calls succeed without any Sentinel."""
    with Penstock(sentinel_url(sentinel), retry_for=0) as ps:
        ps.queue("q").enqueue(1)
        sentinel._listener.close()
        for body in (2, 3):
            ps.queue("q").enqueue(body)
    assert bodies(server) == [1, 2, 3]


def test_new_sentinels(server: EmbeddedServer, make_server: Server) -> None:
    """New Sentinels start with epoch 0: if all agree, clients believe them."""
    new = make_server(tcp=True)
    with FakeSentinel(server.port, epoch=7) as one, Penstock(sentinel_url(one)) as ps:
        ps.queue("q").enqueue(1)
        one.port, one.epoch = new.port or 0, 0
        server.kill()
        ps.queue("q").enqueue(2)
    assert bodies(new) == [2]


def test_sentinels_are_asked_seldom(server: EmbeddedServer, sentinel: FakeSentinel) -> None:
    """Sentinels are asked once every few seconds, not for each call."""
    with Penstock(sentinel_url(sentinel)) as ps:
        start = time.monotonic()
        for body in range(300):
            ps.queue("q").enqueue(body)
        assert (
            sentinel.asked <= 1 + (time.monotonic() - start) / sync_sentinel.SENTINEL_LOOK_SECONDS
        )


def is_asking(sentinel: FakeSentinel) -> bool:
    """Tell if a connection to a Sentinel is open."""
    return any(thread.is_alive() for thread in sentinel._threads)


def test_connections_to_sentinels_end_with_the_client(sentinel: FakeSentinel) -> None:
    """One connection is kept until the client is closed; the client can be used again."""
    ps = Penstock(sentinel_url(sentinel))
    for _ in range(2):
        ps.queue("q").enqueue(1)
        assert is_asking(sentinel)
        ps.close()
        wait_for(lambda: not is_asking(sentinel))


@pytest.mark.usefixtures("eager")
def test_a_client_of_two_event_loops(server: EmbeddedServer, sentinel: FakeSentinel) -> None:
    """Connections of one event loop are not used in the next one."""
    ps = AsyncPenstock(sentinel_url(sentinel))

    async def add(body: int) -> None:
        await ps.queue("q").enqueue(body)
        await ps.queue("q").enqueue(body + 1)
        await ps.close()

    asyncio.run(add(1))
    asyncio.run(add(3))
    assert bodies(server) == [1, 2, 3, 4]


@pytest.mark.usefixtures("eager")
def test_many_threads_ask(server: EmbeddedServer, sentinel: FakeSentinel) -> None:
    """Each thread gets its answer; closing the client closes all connections."""
    with Penstock(sentinel_url(sentinel, patience=20)) as ps:
        q = ps.queue("q")
        adding = [spawn(lambda: [q.enqueue(n) for n in range(20)]) for _ in range(8)]
        for one in adding:
            one.result()
    wait_for(lambda: not is_asking(sentinel))
    assert len(bodies(server)) == 100
    with Penstock(server.url) as ps:
        assert ps.queue("q").stats().ready == 160
