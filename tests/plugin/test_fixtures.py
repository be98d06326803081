"""The fixtures for users' tests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.support import environment
from tests.plugin.conftest import Run

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

RunPytest = Callable[..., Run]


def test_a_queue_without_a_server(run_pytest: RunPytest) -> None:
    """Enqueue, peek, consume, fail and dead letters work without a connection."""
    run = run_pytest(
        """
        import socket

        def test_queue(penstock, monkeypatch):
            monkeypatch.setattr(socket, "socket", None)
            queue = penstock.queue("emails")
            queue.configure(backoff_base=86400, backoff_cap=86400)  # a day's jitter
            queue.enqueue_many([{"to": "ada"}, {"to": "no address"}])
            assert [job.body["to"] for job in queue.peek()] == ["ada", "no address"]
            done = []
            for job in queue.consume(block=0):
                with job:
                    if job.body["to"] == "no address":
                        raise ValueError("no such address")
                    done.append(job.body["to"])
            assert done == ["ada"]
            [later] = queue.peek(state="scheduled")
            assert later.error == "ValueError: no such address"
            assert queue.reserve(block=0.05) == []
        """
    )
    assert (run.code, run.counts) == (0, {"passed": 1}), run.out


def test_each_test_has_a_server_of_its_own(run_pytest: RunPytest) -> None:
    """Data of one test, including active jobs, is not visible in another."""
    run = run_pytest(
        """
        import pytest

        @pytest.mark.parametrize("turn", [1, 2, 3])
        def test_alone(penstock, penstock_server, turn):
            assert penstock.queues() == []
            penstock.queue("q").enqueue_many(range(3))
            penstock.queue("q").reserve(2, block=0)
        """
    )
    assert run.counts == {"passed": 3}, run.out


def test_replicas_confirm_by_the_marker(run_pytest: RunPytest) -> None:
    """It works in both clients, for jobs and acks; more than the marked number is
    refused at once.
    """
    run = run_pytest(
        """
        import pytest
        from penstock import AckNotReplicated, Durable, NotReplicated

        def test_none(penstock):
            with pytest.raises(NotReplicated):
                penstock.queue("q").enqueue("x", durable=Durable(1, timeout=0.05))

        @pytest.mark.penstock(replicas=2)
        def test_two(penstock):
            queue = penstock.queue("q")
            assert queue.enqueue("x", replicas=1).replicas == 2
            assert {one.replicas for one in queue.enqueue_many(range(2500), replicas=2)} == {2}
            misleading = b"*3\\r\\n$4\\r\\nWAIT\\r\\n$1\\r\\n1\\r\\n$1\\r\\n1"
            assert queue.enqueue(misleading).replicas == 0
            with pytest.raises(NotReplicated, match="2 of 3 replicas are connected"):
                queue.enqueue("x", durable=Durable(3, timeout=3600))
            queue.configure(replicas=2)
            assert queue.enqueue("x").replicas == 2
            jobs = queue.reserve(2, block=0)
            assert queue.ack(jobs[:1], replicas=2).replicas == 2
            with pytest.raises(AckNotReplicated):
                queue.ack(jobs[1:], durable=Durable(3, timeout=3600))
            assert queue.stats().acked == 2

        @pytest.mark.asyncio
        @pytest.mark.penstock(replicas=1)
        async def test_one(apenstock):
            queue = apenstock.queue("q")
            assert (await queue.enqueue("x", replicas=1)).replicas == 1
            with pytest.raises(NotReplicated):
                await queue.enqueue("x", durable=Durable(2, timeout=3600))
            [job] = await queue.reserve()
            assert await job.ack(replicas=1)
            assert await queue.reserve(block=0.05) == []

        @pytest.mark.penstock(replicas=1)
        class TestNearest:
            @pytest.mark.penstock(replicas=0)
            def test_nearest(self, penstock):
                with pytest.raises(NotReplicated):
                    penstock.queue("q").enqueue("x", durable=Durable(1, timeout=0.05))
        """,
        "--strict-markers",
    )
    assert run.counts == {"passed": 4}, run.out


@pytest.mark.parametrize(
    "form, told",
    [
        ("penstock(1)", "write the marker as @pytest.mark.penstock(replicas=1)"),
        ("penstock", "write the marker as @pytest.mark.penstock(replicas=1)"),
        ("penstock(replica=1)", "write the marker as @pytest.mark.penstock(replicas=1)"),
        ("penstock(redirect=1)", "redirect=1: must be True or False"),
        ("penstock(replicas=-1)", "replicas=-1: must be a number from 0 to 1000"),
        ("penstock(replicas=True)", "replicas=True: must be a number from 0 to 1000"),
    ],
)
def test_a_wrong_marker(run_pytest: RunPytest, form: str, told: str) -> None:
    """A wrong marker is an error with the right form."""
    source = f"import pytest\n\n@pytest.mark.{form}\ndef test_it(penstock):\n    pass\n"
    run = run_pytest(source)
    assert run.code == 1
    assert told in run.out


ASYNC_TEST = """
    import asyncio, fakeredis, pytest

    async def work(apenstock):
        queue = apenstock.queue("q")
        assert await queue.reserve(block=0.05) == []
        await queue.enqueue_many(range(3))
        async for job in queue.consume(block=0):
            async with job:
                pass
        assert (await queue.stats()).acked == 3

    @pytest.mark.asyncio
    @pytest.mark.parametrize("turn", [1, 2])
    async def test_by_the_plugin(apenstock, turn):
        await work(apenstock)

    def test_by_hand(apenstock):
        asyncio.run(work(apenstock))

    def test_idle(penstock, apenstock, penstock_server):
        pass

    @pytest.mark.asyncio
    async def test_shared(penstock, apenstock, penstock_server):
        await apenstock.queue("q").enqueue(b"x")
        [job] = penstock.queue("q").reserve(block=0)
        assert (job.body, job.owner) == (b"x", "test")
        plain = fakeredis.FakeRedis(server=penstock_server)
        assert plain.hlen("penstock:{q}:held") == 1
        plain.close()
"""


def test_any_runner_of_the_event_loop(run_pytest: RunPytest) -> None:
    """With pytest-asyncio or the test's own loop; an open resource would be a warning.

    An unused fixture leaves nothing open. Both clients and a plain one of fakeredis see the same
    keys.
    """
    run = run_pytest(ASYNC_TEST)
    assert (run.code, run.counts) == (0, {"passed": 5}), run.out


def test_the_fixtures_are_listed(run_pytest: RunPytest) -> None:
    """`pytest --fixtures` lists them with a sentence each, and no others of ours."""
    run = run_pytest("def test_nothing(): pass", "--fixtures", "-p", "no:asyncio")
    listed = re.findall(
        r"^(\w+) -- .*pytest_penstock/__init__\.py:\d+\n    (\w.*)", run.out, re.MULTILINE
    )
    assert [name for name, _ in listed] == ["penstock_server", "penstock", "apenstock"]


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_the_extra(run_pytest: RunPytest, tmp_path: Path, missing: str) -> None:
    """A test that uses a fixture fails with installation advice; all others run."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / f"{missing}.py").write_text(
        f"raise ModuleNotFoundError(name={missing!r})"
    )
    run = run_pytest(
        """
        def test_without(): pass
        def test_with(penstock): pass
        def test_async(apenstock): pass
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path / "absent"), environment()["PYTHONPATH"]]),
    )
    assert run.counts == {"passed": 1, "errors": 2}, run.out
    assert f"penstock.testing needs {missing}: pip install 'penstock[testing]'" in run.out
    assert "Traceback" not in run.out


def test_the_plugin_is_cheap(run_pytest: RunPytest) -> None:
    """Every run of pytest loads the plugin, so it imports nothing of penstock or redis-py."""
    run = run_pytest(
        """
        import sys

        def test_before():
            assert "pytest_penstock" in sys.modules
            heavy = {"penstock", "redis", "hiredis", "fakeredis", "lupa", "rich", "typer"}
            assert not heavy & set(sys.modules)

        def test_after(penstock):
            assert "fakeredis" in sys.modules
        """
    )
    assert (run.code, run.counts) == (0, {"passed": 2}), run.out


def test_pytest_finds_it_by_itself(run_pytest: RunPytest, tmp_path: Path) -> None:
    """The declared entry point is sufficient."""
    declared = re.search(
        r'\[project\.entry-points\.pytest11\]\n(\w+) = "([\w.]+)"\n', PYPROJECT.read_text()
    )
    assert declared
    installed = tmp_path / "site"
    info = installed / "penstock_of_the_test-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: penstock-of-the-test\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(f"[pytest11]\n{declared[1]} = {declared[2]}\n")
    run = run_pytest(
        "def test_found(penstock): assert penstock.queues() == []",
        *("-p", "no:valkey", "-p", "no:asyncio", "-p", "no:testcontainers"),
        plugins=(),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="",
        PYTHONPATH=os.pathsep.join([str(installed), environment()["PYTHONPATH"]]),
    )
    assert (run.code, run.counts) == (0, {"passed": 1}), run.out
