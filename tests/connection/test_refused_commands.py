"""Servers and proxies that refuse commands which a client sends outside of scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import redis

from penstock import AsyncPenstock, Handlers, NotPermitted, Penstock, UnsupportedServer, Worker
from penstock.client._sync.transport import executor, finished
from penstock.core.calls.failures import refuses_command
from penstock.core.calls.unavailable import LONGEST_COMMAND_PAUSE, UnavailableCommands
from penstock.core.flows import effects
from penstock.embedded import EmbeddedServer
from penstock.pressure import PressureQueue
from penstock.pressure._sync import connections
from penstock.worker import idle, state
from tests.connection.stub import Command, Stub, bulk, info
from tests.support.twins import spawn, wait_for

POLL = 0.1
WAITS = ["blpop", "client", "client|unblock"]
"""Commands of a wait for a token."""
Server = Callable[..., EmbeddedServer]


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the poll interval, which is how long a job waits if no token wakes its consumer."""
    for module in (finished, effects, state):
        monkeypatch.setattr(module, "POLL_INTERVAL", POLL)
    monkeypatch.setattr(idle, "FOLLOWED_WAIT_SECONDS", POLL)
    monkeypatch.setattr(executor, "FIELD_LOOK_PAUSE_SECONDS", 0.001)


def refusals(server: EmbeddedServer) -> int:
    """Return how many commands the server has refused by its ACL rules."""
    with redis.Redis.from_url(server.url, username="admin", password="admin") as raw:
        found: int = raw.info("errorstats").get("errorstat_NOPERM", {}).get("count", 0)
    return found


def forbid(server: EmbeddedServer, command: str) -> None:
    """Let the user of the tests not run a command, except redis-py's CLIENT SETINFO."""
    whole, _, subcommand = command.partition("|")
    rules = [f"-{command}"]
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command("ACL", "SETUSER", "admin", "on", ">admin", "+@all", "~*")
        if subcommand and raw.info("server")["redis_version"] < "7":  # it can only allow them
            others = {"id", "unblock"} - {subcommand}
            rules = [f"-{whole}", *(f"+{whole}|{other}" for other in others)]
        raw.execute_command("ACL", "SETUSER", "default", *rules)
        with suppress(redis.ResponseError):  # Redis 7.0 does not know it
            raw.execute_command("ACL", "SETUSER", "default", "+client|setinfo")


def about(command: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about a command."""
    name = "BLPOP" if command == "blpop" else "CLIENT UNBLOCK"
    return [text for text in caplog.messages if f"refuses {name} (" in text]


@pytest.mark.parametrize("command", WAITS)
def test_a_wait_goes_on_without_a_command(
    server: EmbeddedServer, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiting reserve gets a job that comes later, of any of its queues, and warns once."""
    forbid(server, command)
    with Penstock(server.url) as producer, Penstock(server.url) as consumer:
        for number in range(3):
            waiting = spawn(consumer.reserve, ["a", "b"], block=20)
            wait_for(lambda: bool(about(command, caplog)) or command == "client|unblock")
            producer.queue("ab"[number % 2]).enqueue(number)
            (job,) = waiting.result()
            assert (job.body, job.ack()) == (number, True)
        assert consumer.queue("a").reserve(block=3 * POLL) == []
    assert len(about(command, caplog)) == 1


def calls_of(server: EmbeddedServer, command: str, kind: str = "calls") -> int:
    """Return how often the server has run a command, or with "rejected_calls" refused it.

    Before Redis 7 there are no counts of subcommands: then those of the whole command.
    """
    with redis.Redis.from_url(server.url, username="admin", password="admin") as raw:
        counts = raw.info("commandstats")
    names = (f"cmdstat_{command}", f"cmdstat_{command.partition('|')[0]}")
    found: int = next((counts[name].get(kind, 0) for name in names if name in counts), 0)
    return found


def test_a_refused_id_is_not_asked_for_again(server: EmbeddedServer) -> None:
    """Connections that are opened in the pause ask for no id; so the pause stays short."""
    forbid(server, "client|id")
    with Penstock(server.url) as ps:
        for _ in range(3):  # each wait ends early, and closes its connection
            assert ps.queue("q").reserve(block=POLL) == []
    assert calls_of(server, "client|id", "rejected_calls") == 1


REFUSALS = [
    "ERR unknown command 'BLPOP', with args beginning with: ",
    "ERR Unknown subcommand or wrong number of arguments for 'ID'. Try CLIENT HELP.",
    "NOPERM this user has no permissions to run the 'blpop' command or its subcommand",
    "User default has no permissions to run the 'client|unblock' command",
    "ERR command 'BLPOP' is not allowed",
    "Command is not supported",
]
OTHERS = [
    "ERR wrong number of arguments for 'blpop' command",
    "ERR timeout is not a float or out of range",
    "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
    "ERR Invalid stream ID specified as stream command argument",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM this user has no permissions to access one of the keys used as arguments",
    "No permissions to access a key",
    "command not allowed when used memory > 'maxmemory'.",
    "UNBLOCKED force unblock from blocking operation",
]


@pytest.mark.parametrize("text", REFUSALS + OTHERS)
def test_refusals_of_commands(text: str) -> None:
    """An error about the arguments is not a refusal: it is raised, not hidden for an hour."""
    assert refuses_command(redis.ResponseError(text)) == (text in REFUSALS)


def test_a_task_waits_without_tokens(make_server: Server) -> None:
    """In asyncio, too; the server knows the command under no name."""
    server = make_server(tcp=True, args=("--rename-command", "BLPOP", ""))

    async def consume() -> list[object]:
        async with AsyncPenstock(server.url) as ps:
            waiting = asyncio.ensure_future(ps.queue("q").reserve(block=20))
            await asyncio.sleep(0)
            await ps.queue("q").enqueue("later")
            return [job.body for job in await waiting]

    assert asyncio.run(consume()) == ["later"]


@pytest.mark.parametrize("command", WAITS)
def test_an_idle_worker_does_not_ask_again_and_again(
    server: EmbeddedServer, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle worker runs new jobs, sends a refused command no more for a while, and warns once."""
    forbid(server, command)
    handlers, done = Handlers(), list[int]()

    @handlers.handler
    def note(number: int) -> None:
        done.append(number)

    rounds = list[object]()
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        with Worker(ps, "q", handlers, concurrency=2, monitor=rounds.append) as worker:
            for number in range(3):
                note.enqueue(q, number)
                wait_for(partial(done.__contains__, number))
            seen = len(rounds)
            wait_for(lambda: len(rounds) > seen + 10)
            assert worker.healthy()
    assert refusals(server) <= 6, "each connection may ask for its id once"
    assert len(about(command, caplog)) <= 1
    assert "failed" not in caplog.text


def test_a_result_is_looked_for_without_xread(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that waits for a result looks for it in intervals."""
    forbid(server, "xread")
    with Penstock(server.url) as ps:
        q = ps.queue("q")
        job_id = q.enqueue(1, result_ttl=60).id
        waiting = spawn(q.result, job_id, timeout=20)
        wait_for(lambda: "refuses XREAD" in caplog.text)
        (job,) = q.reserve(block=0)
        job.ack()
        assert waiting.result() is None
    assert refusals(server) == 1


def test_a_refused_command_is_tried_again_ever_more_rarely() -> None:
    """The pause doubles up to an hour; a warning is due once an hour. Then all begins anew."""
    now = 1000.0
    unavailable = UnavailableCommands(lambda: now)
    warnings, tries = 0, 0
    for _ in range(24 * 60):
        if "BLPOP" not in unavailable:
            tries += 1
            warnings += unavailable.note("BLPOP")
        now += 60
    assert "XREAD" not in unavailable
    assert 24 <= warnings <= tries <= 40
    now += 3 * LONGEST_COMMAND_PAUSE
    for _ in range(10):  # connections on which it was sent at once
        unavailable.note("BLPOP")
    now += 4
    assert "BLPOP" not in unavailable


def test_the_pauses_of_a_refused_command() -> None:
    """Each pause is twice as long as the one before, up to an hour."""
    now = 1000.0
    unavailable = UnavailableCommands(lambda: now)
    for pause in (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600):
        unavailable.note("BLPOP")
        now += pause - 0.5
        assert "BLPOP" in unavailable
        now += 0.5
        assert "BLPOP" not in unavailable


@pytest.mark.parametrize("command, named", [("SCRIPT", "SCRIPT LOAD"), ("EVALSHA", "EVALSHA")])
def test_a_server_without_a_command_that_is_needed(
    make_server: Server, command: str, named: str
) -> None:
    """The error names the server and the command, and says what to do."""
    server = make_server(tcp=True, args=("--rename-command", command, ""))
    with Penstock(server.url) as ps:
        address = ps.topology.executor.address
        text = rf"{address} refuses the command {named}[: ].*connect to a Redis server itself"
        with pytest.raises(NotPermitted, match=text):
            ps.queue("q").enqueue(1)


def test_a_proxy_with_a_text_of_its_own() -> None:
    """A refusal of SCRIPT LOAD in any words is explained, with these words."""

    def refuse(command: Command) -> bytes:
        if command[0] == b"INFO":
            return info(redis_version="7.0.0")
        if command[0] == b"HGET":
            return bulk(b"0" * 40)
        return b"-NOSCRIPT no\r\n" if command[0] == b"EVALSHA" else b"-ERR not here\r\n"

    refused = pytest.raises(NotPermitted, match=r"SCRIPT LOAD \(not here\): ")
    with Stub(refuse) as stub, Penstock(stub.url) as ps, refused:
        ps.queue("q").stats()


def test_pressure_waits_without_blmove(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiting `get` looks for messages in intervals, and sends the command no more."""
    monkeypatch.setattr(connections, "BLOCKING_SECONDS", 0.02)
    forbid(server, "blmove")
    with PressureQueue("q", server.url) as consumer, PressureQueue("q", server.url) as producer:
        consumer.create()
        waiting = spawn(consumer.get, timeout=20)
        wait_for(lambda: calls_of(server, "blmove", "rejected_calls") > 0)
        looks = calls_of(server, "llen")
        wait_for(lambda: calls_of(server, "llen") > looks + 3)
        producer.put(b"later")
        assert waiting.result() == b"later"
    assert calls_of(server, "blmove", "rejected_calls") == 1
    assert caplog.text.count("refuses BLMOVE") == 1


def test_a_proxy_that_reads_from_a_replica() -> None:
    """An id that was written and can't be read ends in an error, after a few tries."""

    def answer(command: Command) -> bytes:
        if command[0] == b"INFO":
            return info(redis_version="7.0.0")
        found = {b"HGET": b"$-1\r\n", b"HSETNX": b":0\r\n"}
        return found.get(command[0], b"-ERR unknown command\r\n")

    refused = pytest.raises(UnsupportedServer, match=r"'penstock.*replica; connect to the primary")
    with Stub(answer) as stub, refused, Penstock(stub.url) as ps:
        ps.queue("q").stats()
