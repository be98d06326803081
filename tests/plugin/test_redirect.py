"""Clients of the tested app: a test leads them to its own server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugin.conftest import Run

RunPytest = Callable[..., Run]

APP = """
from penstock import AsyncPenstock, Handlers, Penstock, Worker

CLOSED = "redis://127.0.0.1:1/0"  # nothing listens there
ps = Penstock(CLOSED, retry_for=0)
aps = AsyncPenstock(CLOSED, retry_for=0)
several = Penstock([CLOSED, "redis://127.0.0.1:2/0"], retry_for=0)
handlers = Handlers()
emails = ps.queue("emails")
aemails = aps.queue("emails")
nodes = several.queue("emails")
parts = ps.queue("parts", partitions=3)
bound = emails.handler
seen = []

@handlers.handler
def welcome(to: str) -> None:
    seen.append(to)

@emails.handler
def remind(to: str) -> None:
    seen.append(f"{to} again")

worker = Worker(ps, emails, handlers, burst=True)
"""


@pytest.fixture
def run_app(run_pytest: RunPytest, tmp_path: Path) -> RunPytest:
    """Run a test file that can import the app."""
    (tmp_path / "app.py").write_text(APP)

    def run(source: str, *arguments: str) -> Run:
        return run_pytest("import app, asyncio, pytest\n" + source, *arguments)

    return run


@pytest.mark.slow
def test_clients_of_a_module_lead_to_the_tests_server(run_app: RunPytest) -> None:
    """Those that were made by an import, their queues and workers; each test has other data."""
    run = run_app(
        """
@pytest.mark.parametrize("turn", [1, 2])
def test_each(penstock, turn):
    assert app.ps.queues() == []
    app.welcome.enqueue(app.emails, "ada")
    app.remind.enqueue("bob")
    app.nodes.enqueue("x")
    app.parts.enqueue_many(range(5))
    penstock.assert_enqueued(app.welcome, "ada", queue="emails")
    penstock.assert_enqueued(app.remind, "bob")
    assert penstock.open("parts").stats().ready == 5
    assert app.emails.stats().ready == 3

def test_a_worker(penstock):
    app.seen.clear()
    app.welcome.enqueue(app.emails, "ada")
    app.worker.run()
    assert app.seen == ["ada"]
    assert penstock.queue("emails").stats().acked == 1

def test_made_in_the_test(penstock):
    from penstock import Penstock
    Penstock("redis://127.0.0.1:1/0").queue("late").enqueue("x")
    assert penstock.queues() == ["late"]

@pytest.mark.asyncio
@pytest.mark.parametrize("turn", [1, 2])
async def test_asyncio(apenstock, turn):
    await app.aemails.enqueue("x")
    [job] = await app.aemails.reserve(block=0)
    assert await job.ack()
    await app.welcome.enqueue(app.aemails, "ada")
    await apenstock.assert_enqueued(app.welcome, "ada")

@pytest.mark.asyncio
async def test_both(penstock, apenstock):
    app.emails.enqueue("x")
    assert (await app.aemails.stats()).ready == 1
"""
    )
    assert (run.code, run.counts) == (0, {"passed": 7}), run.out


def test_afterwards_they_are_at_home(run_app: RunPytest) -> None:
    """Each client has its own server again, also several; a queue and a job follow."""
    run = run_app(
        """
from redis.exceptions import ConnectionError
from penstock import Penstock

def test_first(penstock):
    global late
    app.emails.enqueue("x")
    app.nodes.enqueue("x")
    late = Penstock("redis://127.0.0.1:1/0", retry_for=0).queue("late")
    late.enqueue("x")

def test_second():
    for queue in (app.emails, app.nodes, late):
        with pytest.raises(ConnectionError):
            queue.stats()
    assert "2 nodes" in repr(app.several) or "127.0.0.1:2" in repr(app.several)
"""
    )
    assert (run.code, run.counts) == (0, {"passed": 2}), run.out


def test_what_stays_where_it_is(run_app: RunPytest) -> None:
    """With `redirect=False` all clients do, else those that a test has given a fake server."""
    run = run_app(
        """
import fakeredis
from redis.exceptions import ConnectionError
from penstock import Penstock

@pytest.mark.penstock(redirect=False)
def test_marked(penstock):
    penstock.queue("emails").enqueue("x")
    with pytest.raises(ConnectionError):
        app.emails.enqueue("x")

def test_fake(penstock):
    with Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as other:
        other.queue("other").enqueue("x")
        assert penstock.queues() == []
""",
        "--strict-markers",
    )
    assert (run.code, run.counts) == (0, {"passed": 2}), run.out


def test_the_server_alone_and_replicas(run_app: RunPytest) -> None:
    """The fixture of the server redirects, too; replicas of the marker confirm for all clients."""
    run = run_app(
        """
import fakeredis
from penstock import NotReplicated

def test_server(penstock_server):
    app.emails.enqueue("x")
    plain = fakeredis.FakeRedis(server=penstock_server)
    assert plain.exists("penstock:{emails}:meta")
    plain.close()

@pytest.mark.penstock(replicas=1)
def test_replicas(penstock):
    assert app.emails.enqueue("x", replicas=1).replicas == 1

def test_none(penstock):
    with pytest.raises(NotReplicated):
        app.emails.enqueue("x", replicas=1)
"""
    )
    assert (run.code, run.counts) == (0, {"passed": 3}), run.out


def test_without_pytest(run_app: RunPytest) -> None:
    """`use` does it for other runners: unittest and Django; blocks may be nested."""
    run = run_app(
        """
import unittest
from penstock import BadArgument, testing

class SignUp(unittest.TestCase):
    def setUp(self):
        self.block = testing.use()
        self.penstock = self.block.__enter__()
        self.addCleanup(self.block.__exit__, None, None, None)

    def test_welcome(self):
        app.welcome.enqueue(app.emails, "ada")
        self.penstock.assert_enqueued(app.welcome, "ada")
        assert self.penstock.work(app.handlers) == {"done": 1}

    def test_nested(self):
        app.emails.enqueue("outer")
        with testing.use(prefix="shop") as inner:
            assert app.emails.stats().ready == 0
            inner.queue("emails").enqueue("inner")
        assert [job.body for job in app.emails.peek()] == ["outer"]

    def test_wrong(self):
        with self.assertRaises(BadArgument), testing.use(replicas=-1):
            pass
""",
        "-p",
        "no:asyncio",
    )
    assert (run.code, run.counts) == (0, {"passed": 3}), run.out


def test_testing_needs_no_pytest(run_pytest: RunPytest) -> None:
    """Django's own runner has none."""
    run = run_pytest(
        """
        import subprocess, sys

        def test_import():
            code = "import penstock.testing, sys; sys.exit('pytest' in sys.modules)"
            assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        """
    )
    assert run.counts == {"passed": 1}, run.out
